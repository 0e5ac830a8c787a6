"""The space of a sweep: every candidate, and why the others are ruled out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from search_spaces.combinations import Combinations
from search_spaces.domains import Chosen, Values
from search_spaces.errors import Fault, SpecError
from search_spaces.knobs import KNOBS
from search_spaces.outcome import Refused
from search_spaces.plan import RESTS, Plan
from search_spaces.rules import Surroundings, refusal
from search_spaces.spec.schema import SweepSpec

MAX_CANDIDATES = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """What may be tried.

    `domains` holds the values searched of each knob, by name, those at which it rests where it
    does not matter included; `candidates` the legal plans in the order of the domains;
    `ruled_out` how many combinations each rule forbids.
    """

    domains: tuple[tuple[str, Values], ...]
    candidates: tuple[Plan, ...]
    ruled_out: tuple[tuple[str, int], ...]
    baseline: Plan


def build_space(around: Surroundings, workers: int) -> Space:
    """Enumerates and rules every combination of the knobs' values.

    Args:
        around: The spec and what is known of model and cluster.
        workers: Ranks that the sweep uses where `space.data` names no others.

    Raises:
        SpecError: If no combination is legal, or there are more than `MAX_CANDIDATES`.
    """
    spec = around.spec
    combinations = Combinations(around, workers)
    domains = combinations.domains
    if combinations.count > MAX_CANDIDATES:
        raise _too_many(combinations.count, domains)
    legal: list[Plan] = []
    ruled: Counter[str] = Counter()
    example: dict[str, Refused] = {}
    for knobs in combinations:
        plan = _plan(knobs, spec)
        if plan is None:
            ruled["global_batch_is_kept"] += 1
        elif refused := refusal(plan, around):
            ruled[refused.rule] += 1
            example.setdefault(refused.rule, refused)
        else:
            legal.append(plan)
    if not legal:
        raise _nothing_legal(around, domains, example, ruled)
    return Space(
        domains=tuple(domains.items()),
        candidates=tuple(legal),
        ruled_out=tuple(sorted(ruled.items())),
        baseline=_baseline(legal, spec),
    )


def space_of(tried: Sequence[Plan], spec: SweepSpec) -> Space:
    """The space as far as the plans tell of it: for reports, where no model is at hand."""
    columns = {
        knob.name: dict.fromkeys(getattr(plan, knob.name) for plan in tried) for knob in KNOBS
    }
    return Space(
        domains=tuple((name, tuple(values)) for name, values in columns.items()),
        candidates=tuple(dict.fromkeys(tried)),
        ruled_out=(),
        baseline=_baseline(tried, spec),
    )


def _plan(knobs: Chosen, spec: SweepSpec) -> Plan | None:
    """The plan that meets the global batch with these knobs, None if there is none."""
    accumulation, rest = divmod(spec.train.global_batch, knobs["micro_batch"] * knobs["data"])
    return None if rest else Plan(accumulation=accumulation, **knobs)


def _too_many(count: int, domains: Mapping[str, Values]) -> SpecError:
    widest = sorted(domains, key=lambda name: -len(domains[name]))[:3]
    fault = Fault(
        path="space",
        value=f"{count:,} combinations",
        advice=f"at most {MAX_CANDIDATES:,} can be enumerated; name fewer values, above all of "
        + ", ".join(widest),
    )
    return SpecError("specification", (fault,))


def _baseline(legal: Iterable[Plan], spec: SweepSpec) -> Plan:
    """The plan a user would start with: micro-batch 1, DDP, no checkpointing, sdpa, padded.

    It trains in the precision that the spec asks for: what another one gains is no speed-up
    of the same training.
    """

    def distance(plan: Plan) -> tuple[Any, ...]:
        return (
            plan.precision != spec.train.precision,
            plan.engine != "torch",
            plan.tensor * plan.pipeline,
            plan.zero_stage,
            plan.micro_batch,
            plan.checkpoint_ratio,
            plan.attention != "sdpa",
            plan.batching != "padded",
            -plan.data,
            sum(getattr(plan, name) != rest for name, rest in RESTS.items()),
        )

    return min(legal, key=distance)


def _nothing_legal(
    around: Surroundings,
    values: dict[str, Values],
    example: dict[str, Refused],
    ruled: Counter[str],
) -> SpecError:
    spec = around.spec
    if spec.space.data is None and values["data"][0] > around.cluster.slots:
        return SpecError("specification", (_no_room(around, values["data"][0]),))
    only_batch = set(ruled) == {"global_batch_is_kept"}
    if only_batch:
        nearest = _nearest_global_batch(spec.train.global_batch, values)
        fault = Fault(
            path="train.global_batch",
            value=str(spec.train.global_batch),
            advice="no plan can meet it: it is no multiple of micro_batch x data for"
            f" micro_batch in {list(values['micro_batch'])} and data in {list(values['data'])};"
            f" the nearest that works is {nearest}",
        )
        return SpecError("specification", (fault,))
    reasons = [f"{name} ({refused.detail})" for name, refused in example.items()]
    if ruled["global_batch_is_kept"]:
        reasons.append("global_batch_is_kept (train.global_batch is no multiple)")
    fault = Fault(path="space", value="", advice="no plan is legal: " + "; ".join(reasons))
    return SpecError("specification", (fault,))


def _no_room(around: Surroundings, workers: int) -> Fault:
    slots, cores = around.cluster.slots, around.spec.cluster.cpus_per_worker
    each = "one for each GPU" if around.cluster.device == "cuda" else f"CPU cores for each: {cores}"
    room = "1 rank" if slots == 1 else f"{slots} ranks"
    advice = f"the cluster has room for {room} ({each}); lower it, or leave it out"
    return Fault(path="cluster.workers", value=str(workers), advice=advice)


def _nearest_global_batch(wanted: int, values: dict[str, Values]) -> int:
    def nearest(unit: int) -> int:
        return max((2 * wanted + unit) // (2 * unit), 1) * unit

    units = {micro * data for micro in values["micro_batch"] for data in values["data"]}
    return min((nearest(unit) for unit in units), key=lambda size: (abs(size - wanted), size))
