"""Space of a sweep: all legal plans, and the number of plans that each rule forbids."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from search_spaces.errors import Fault, SpecError
from search_spaces.facts import LossDependence, StepFindings
from search_spaces.hardware.device import RESOURCES
from search_spaces.knobs.registry import KNOBS
from search_spaces.knobs.search_defaults import DomainContext, Values
from search_spaces.plan import DEFAULTS, SHARES, Plan
from search_spaces.plan_table import PlanTable, Rows, constant_codes
from search_spaces.rules.base import RuleContext
from search_spaces.rules.registry import rule_out
from search_spaces.rules.trainer import PREFIX
from search_spaces.specification.schema import SweepSpec
from search_spaces.trial import Refused

MAX_CANDIDATES = 5_000_000


def combinations(context: RuleContext, workers: int) -> PlanTable:
    """Returns all combinations of the knobs' values; values may depend on earlier knobs.

    Rows are in the order of the knobs, with the last one varying fastest. A knob is asked once for
    its values in each case of the knobs that it depends on. Accumulation follows from the global
    batch; a rule refuses the rows that cannot meet it.

    Args:
        context: Specification, and facts about model and cluster.
        workers: Ranks per plan, unless `space.data` names others.

    Raises:
        SpecError: If there are more than `MAX_CANDIDATES`.
    """
    table = PlanTable(values={"accumulation": (1,)}, codes={"accumulation": constant_codes(1)})
    for knob in KNOBS:
        group_of, cases = table.cases(knob.depends_on)
        choices = (
            DomainContext(
                spec=context.spec,
                model=context.model,
                cluster=context.cluster,
                workers=workers,
                chosen=case,
            )
            for case in cases
        )
        table = _extended(table, knob.name, [knob.values(choice) for choice in choices], group_of)
    group_of, cases = table.cases(("micro_batch", "data", "context"))
    global_batch = context.spec.train.global_batch
    counts = [
        global_batch * case["context"] // (case["micro_batch"] * case["data"]) for case in cases
    ]
    return _extended(table, "accumulation", [(max(count, 1),) for count in counts], group_of)


def _extended(table: PlanTable, name: str, values: Sequence[Values], group_of: Rows) -> PlanTable:
    """Returns a table with one more knob: each row repeated for all values of its case."""
    domain = tuple(dict.fromkeys(chain(*values)))
    if name in SHARES:
        domain = tuple(float(ratio) + 0.0 for ratio in domain)  # as in `Plan.__post_init__`
    code_of = {value: code for code, value in enumerate(domain)}
    codes = np.array([code_of[value] for value in chain(*values)], dtype=np.int32)
    counts = np.array([len(case_values) for case_values in values], dtype=np.intp)
    times = counts[group_of]
    if (total := int(times.sum())) > MAX_CANDIDATES:
        raise _too_many(total, table.values)
    first = (np.cumsum(counts) - counts)[group_of]
    if (counts != 1).any():
        table = table.take(np.repeat(np.arange(len(times)), times))
        first = np.repeat(first - (np.cumsum(times) - times), times) + np.arange(total)
    own = constant_codes(total) if len(domain) == 1 else codes[first]
    return PlanTable(values={**table.values, name: domain}, codes={**table.codes, name: own})


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """All legal plans of a sweep.

    Attributes:
        domains: Values of each knob by name, including the default if it may be inactive.
        table: Legal plans, in the order of the domains.
        ruled_out: Number of combinations that each rule forbids.
        objections: What each rule says of one of them.
        baseline: The plan a user would start with.
        dependences: What of a plan changes the loss of this model, as its probe found.
        step: All findings of the probe of a step, which workers are passed.
        lost: Plans that the specification's trainer refuses, of those that are legal otherwise: a
            reason, of one of them, and their number.
    """

    domains: tuple[tuple[str, Values], ...]
    table: PlanTable
    ruled_out: tuple[tuple[str, int], ...]
    baseline: Plan
    objections: tuple[tuple[str, str], ...] = ()
    dependences: tuple[LossDependence, ...] = ()
    step: StepFindings | None = None
    lost: tuple[tuple[str, int], ...] = ()

    @property
    def candidates(self) -> Sequence[Plan]:
        """The legal plans."""
        return self.table


def build_space(context: RuleContext, workers: int) -> Space:
    """Enumerates every combination of the knobs' values, and applies the rules.

    Args:
        context: Specification, and facts about model and cluster.
        workers: Ranks per plan, unless `space.data` names others.

    Raises:
        SpecError: If none is legal, there are too many, or the objective cannot be measured.
    """
    lack, metric = context.cluster.lack("energy"), context.spec.objective.metric
    if lack and metric == "tokens_per_joule":
        fault = Fault(path="objective.metric", value=metric, advice=lack)
        raise SpecError("specification", (fault,))
    table = combinations(context, workers)
    domains = {knob.name: table.values[knob.name] for knob in KNOBS}
    ruling = rule_out(table, context)
    legal = table.take(ruling.legal)
    if not len(legal):
        raise _nothing_legal(context, domains, ruling.examples)
    for name, values in domains.items():  # what a trainer leaves of them is all that is searched
        if f"{PREFIX}{name}" in ruling.ruled_out:
            domains[name] = tuple(one for one in values if legal.is_value(name, one).any())
    return Space(
        domains=tuple(domains.items()),
        table=legal,
        ruled_out=tuple(sorted(ruling.ruled_out.items())),
        baseline=_baseline(legal, context.spec),
        objections=tuple((name, refused.detail) for name, refused in ruling.examples.items()),
        dependences=context.model.dependences,
        step=context.model.step,
        lost=tuple(
            (refused.detail, ruling.ruled_out[name])
            for name, refused in ruling.examples.items()
            if name.startswith(PREFIX)
        ),
    )


def with_plans(space: Space, table: PlanTable) -> Space:
    """Returns the space with further legal plans, which it lacks."""
    joined = space.table.joined(table)
    domains = tuple(
        (name, tuple(dict.fromkeys((*values, *table.values[name]))))
        for name, values in space.domains
    )
    return replace(space, table=joined, domains=domains)


def space_of_plans(tried: Sequence[Plan], spec: SweepSpec) -> Space:
    """Returns a space of the plans that were tried, for reports, which have no model at hand."""
    table = PlanTable.of(dict.fromkeys(tried))
    return Space(
        domains=tuple((knob.name, table.values[knob.name]) for knob in KNOBS),
        table=table,
        ruled_out=(),
        baseline=_baseline(table, spec),
    )


def _too_many(count: int, domains: Mapping[str, Values]) -> SpecError:
    widest = sorted(domains, key=lambda name: -len(domains[name]))[:3]
    fault = Fault(
        path="space",
        value=f"{count:,} combinations or more",
        advice=f"at most {MAX_CANDIDATES:,} can be enumerated; name fewer values, especially of "
        + ", ".join(widest),
    )
    return SpecError("specification", (fault,))


def _baseline(legal: PlanTable, spec: SweepSpec) -> Plan:
    """Returns the legal plan nearest to the specification's baseline, or else where users start.

    That is DDP, micro-batch 1, no recomputation, sdpa, padded. Unless the specification says
    otherwise it trains in its precision, and with `train.micro_batch` if the loss depends on it:
    the gain of another one is no speed-up of the same training.
    """
    others = [~legal.is_value(name, value) for name, value in spec.baseline.items()]
    nearest = legal.take(_nearest(np.sum(others, axis=0))) if others else legal
    nearest = nearest.take(_nearest(~nearest.is_value("precision", spec.train.precision)))
    if spec.train.micro_batch is not None:
        nearest = nearest.take(_nearest(~nearest.is_value("micro_batch", spec.train.micro_batch)))
    for distance in _FROM_BASELINE:
        nearest = nearest.take(_nearest(distance(nearest)))
    return nearest.plan(0)


def _nearest(distance: NDArray[Any]) -> NDArray[np.bool_]:
    return np.asarray(distance == distance.min())


def _changed_knobs(table: PlanTable) -> NDArray[Any]:
    changed = [~table.is_value(name, default) for name, default in DEFAULTS.items()]
    return np.asarray(np.sum(changed, axis=0, dtype=np.intp))


_FROM_BASELINE: tuple[Callable[[PlanTable], NDArray[Any]], ...] = (  # most important first
    lambda table: ~table.is_value("engine", "torch"),
    lambda table: table.column("tensor") * table.column("pipeline"),
    lambda table: table.column("zero_stage"),
    lambda table: table.column("micro_batch"),
    lambda table: table.column("checkpoint_ratio"),
    lambda table: ~table.is_value("attention", "sdpa"),
    lambda table: ~table.is_value("batching", "padded"),
    lambda table: -table.column("data"),
    _changed_knobs,
)


def _nothing_legal(
    context: RuleContext, values: dict[str, Values], examples: Mapping[str, Refused]
) -> SpecError:
    spec = context.spec
    if spec.space.data is None and values["data"][0] > context.cluster.slots:
        return SpecError("specification", (_no_room(context, values["data"][0]),))
    if set(examples) == {"global_batch_is_kept"}:
        nearest = _nearest_global_batch(spec.train.global_batch, values)
        fault = Fault(
            path="train.global_batch",
            value=str(spec.train.global_batch),
            advice="no plan can meet it: it is not a multiple of micro_batch x data for"
            f" micro_batch in {list(values['micro_batch'])} and data in {list(values['data'])};"
            f" the nearest that works is {nearest}",
        )
        return SpecError("specification", (fault,))
    reasons = [f"{name} ({refused.detail})" for name, refused in examples.items()]
    fault = Fault(path="space", advice="no plan is legal: " + "; ".join(reasons))
    return SpecError("specification", (fault,))


def _no_room(context: RuleContext, workers: int) -> Fault:
    slots, cores = context.cluster.slots, context.spec.cluster.cpus_per_worker
    resource = RESOURCES.get(context.cluster.device)
    unit = f"one per {resource}" if resource else f"CPU cores per rank: {cores}"
    room = "1 rank" if slots == 1 else f"{slots} ranks"
    advice = f"the cluster has room for {room} ({unit}); lower it, or remove it"
    return Fault(path="cluster.workers", value=str(workers), advice=advice)


def _nearest_global_batch(target: int, values: dict[str, Values]) -> int:
    def nearest(unit: int) -> int:
        return max((2 * target + unit) // (2 * unit), 1) * unit

    units = {micro * data for micro in values["micro_batch"] for data in values["data"]}
    return min((nearest(unit) for unit in units), key=lambda size: (abs(size - target), size))
