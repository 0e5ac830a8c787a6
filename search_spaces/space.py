"""The space of a sweep: every candidate, and why the others are ruled out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from search_spaces.combinations import Combinations
from search_spaces.domains import Values
from search_spaces.errors import Fault, SpecError
from search_spaces.knobs import KNOBS
from search_spaces.outcome import Refused
from search_spaces.plan import RESTS, Plan
from search_spaces.plan_table import Candidates, PlanTable
from search_spaces.rules import Surroundings
from search_spaces.rules.columns import rule_out
from search_spaces.spec.schema import SweepSpec

MAX_CANDIDATES = 5_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """What may be tried.

    `domains` holds the values searched of each knob, by name, those at which it rests where it
    does not matter included; `table` the legal plans in the order of the domains; `ruled_out`
    how many combinations each rule forbids.
    """

    domains: tuple[tuple[str, Values], ...]
    table: PlanTable
    ruled_out: tuple[tuple[str, int], ...]
    baseline: Plan

    @property
    def candidates(self) -> Candidates:
        """The legal plans as a sequence, each made when it is asked for."""
        return Candidates(self.table)


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
    table, unmet = combinations.table()
    ruling = rule_out(table, around)
    ruled = ruling.ruled_out | ({"global_batch_is_kept": unmet} if unmet else {})
    legal = table.take(ruling.legal)
    if not len(legal):
        raise _nothing_legal(around, domains, ruling.examples, ruled)
    return Space(
        domains=tuple(domains.items()),
        table=legal,
        ruled_out=tuple(sorted(ruled.items())),
        baseline=_baseline(legal, spec),
    )


def space_of(tried: Sequence[Plan], spec: SweepSpec) -> Space:
    """The space as far as the plans tell of it: for reports, where no model is at hand."""
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
        value=f"{count:,} combinations",
        advice=f"at most {MAX_CANDIDATES:,} can be enumerated; name fewer values, above all of "
        + ", ".join(widest),
    )
    return SpecError("specification", (fault,))


def _baseline(legal: PlanTable, spec: SweepSpec) -> Plan:
    """The plan a user would start with: micro-batch 1, DDP, no checkpointing, sdpa, padded.

    It trains in the precision that the spec asks for: what another one gains is no speed-up
    of the same training.
    """
    nearest = legal.take(_nearest(~legal.is_value("precision", spec.train.precision)))
    for distance in _FROM_BASELINE:
        nearest = nearest.take(_nearest(distance(nearest)))
    return nearest.plan(0)


def _nearest(distance: NDArray[Any]) -> NDArray[np.bool_]:
    return np.asarray(distance == distance.min())


def _off_rest(table: PlanTable) -> NDArray[Any]:
    off = [~table.is_value(name, rest) for name, rest in RESTS.items()]
    return np.asarray(np.sum(off, axis=0, dtype=np.intp))


_FROM_BASELINE: tuple[Callable[[PlanTable], NDArray[Any]], ...] = (  # what counts most goes first
    lambda table: ~table.is_value("engine", "torch"),
    lambda table: table.column("tensor") * table.column("pipeline"),
    lambda table: table.column("zero_stage"),
    lambda table: table.column("micro_batch"),
    lambda table: table.column("checkpoint_ratio"),
    lambda table: ~table.is_value("attention", "sdpa"),
    lambda table: ~table.is_value("batching", "padded"),
    lambda table: -table.column("data"),
    _off_rest,
)


def _nothing_legal(
    around: Surroundings,
    values: dict[str, Values],
    example: Mapping[str, Refused],
    ruled: Mapping[str, int],
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
    if "global_batch_is_kept" in ruled:
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
