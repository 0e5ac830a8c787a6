"""The space of a sweep: every candidate, and why the others are ruled out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from search_spaces.errors import Fault, SpecError
from search_spaces.knobs.registry import KNOBS
from search_spaces.knobs.search_defaults import Chosen, DomainContext, Values
from search_spaces.plan import DEFAULTS, Plan
from search_spaces.plan_table import Candidates, Codes, PlanTable, Rows, constant_codes, group
from search_spaces.rules.base import RuleContext
from search_spaces.rules.registry import rule_out
from search_spaces.spec.schema import SweepSpec
from search_spaces.trial import Refused

_Key = tuple[Any, ...]
MAX_CANDIDATES = 5_000_000


class Combinations:
    """A tree and not a product: what a knob offers may depend on those before it.

    What lies below a point depends on a few of the knobs above it (`Knob.looks_at`), so that
    counting looks at each such case once, however many points share it.
    """

    def __init__(self, around: RuleContext, workers: int) -> None:
        """Counts them.

        Args:
            around: The spec and what is known of model and cluster.
            workers: Ranks that the sweep uses where `space.data` names no others.
        """
        self._around = around
        self._workers = workers
        self._offered: dict[_Key, Values] = {}
        self._counted: dict[_Key, int] = {}
        self._met: dict[str, dict[Any, None]] = {knob.name: {} for knob in KNOBS}
        self.count = self._count(0, {})

    @property
    def domains(self) -> dict[str, Values]:
        """The values of each knob, in the order in which they are met."""
        return {name: tuple(values) for name, values in self._met.items()}

    def table(self) -> tuple[PlanTable, int]:
        """The plans that meet the global batch, and how many combinations do not.

        Rows are in the order of the knobs, the last one varying fastest.
        """
        grown = _Grown(self.domains)
        unmet = 0
        for level, knob in enumerate(KNOBS):
            group_of, chosen = grown.cases(knob.depends_on)
            offered = [self._values(level, case) for case in chosen]
            grown.add(knob.name, offered, group_of)
            if level == _FED:
                unmet = self._keep_global_batch(grown)
        return grown.table(), unmet

    def _keep_global_batch(self, grown: _Grown) -> int:
        """Adds accumulation and drops what cannot meet the batch; how much would grow of that."""
        group_of, chosen = grown.cases(("micro_batch", "data"))
        wanted = self._around.spec.train.global_batch
        parts = [divmod(wanted, case["micro_batch"] * case["data"]) for case in chosen]
        meets = np.array([rest == 0 for _, rest in parts], dtype=bool)[group_of]
        grown.domains["accumulation"] = tuple(dict.fromkeys(most for most, _ in parts))
        grown.add("accumulation", [(most,) for most, _ in parts], group_of)
        below_of, below = grown.cases(_BELOW[_FED + 1])
        sizes = np.array([self._count(_FED + 1, case) for case in below], dtype=np.int64)
        unmet = int(sizes[below_of[~meets]].sum())
        grown.keep(np.flatnonzero(meets))
        return unmet

    def _count(self, level: int, chosen: Chosen) -> int:
        if level == len(KNOBS):
            return 1
        key = (level, *(chosen[name] for name in _BELOW[level]))
        if key not in self._counted:
            name, values = KNOBS[level].name, self._values(level, chosen)
            self._met[name].update(dict.fromkeys(values))
            # where nothing below looks at this knob, one of its values stands for all
            shared = name not in _BELOW[level + 1]
            counts = (
                self._count(level + 1, {**chosen, name: value})
                for value in (values[:1] if shared else values)
            )
            self._counted[key] = sum(counts) * (len(values) if shared else 1)
        return self._counted[key]

    def _values(self, level: int, chosen: Chosen) -> Values:
        knob = KNOBS[level]
        key = (level, *[chosen[name] for name in knob.depends_on])
        values = self._offered.get(key)
        if values is None:
            around = self._around
            choice = DomainContext(
                spec=around.spec,
                model=around.model,
                cluster=around.cluster,
                workers=self._workers,
                chosen={name: chosen[name] for name in knob.depends_on},
            )
            values = self._offered[key] = knob.values(choice)
        return values


def _below(level: int) -> tuple[str, ...]:
    """The knobs above a level that those from it on look at."""
    above = {knob.name for knob in KNOBS[:level]}
    looked_at = {name for knob in KNOBS[level:] for name in knob.depends_on}
    return tuple(sorted(above & looked_at))


class _Grown:
    """The combinations of the first knobs, column by column."""

    def __init__(self, domains: Mapping[str, Values]) -> None:
        self.domains = dict(domains)
        self._codes: dict[str, Codes] = {}
        self._rows = 1

    def cases(self, names: Sequence[str]) -> tuple[Rows, list[dict[str, Any]]]:
        """For each row the number of its case, and each case of these knobs that there is."""
        columns = {name: self._codes[name] for name in names}
        sized = [(codes, len(self.domains[name])) for name, codes in columns.items()]
        group_of, some_row = group(sized, self._rows)
        return group_of, [
            {name: self.domains[name][codes[row]] for name, codes in columns.items()}
            for row in some_row
        ]

    def add(self, name: str, offered: Sequence[Values], group_of: Rows) -> None:
        """Adds a knob: each row once for each of the values that its case is offered."""
        code_of = {value: code for code, value in enumerate(self.domains[name])}
        codes = np.array([code_of[value] for value in chain(*offered)], dtype=np.int32)
        counts = np.array([len(values) for values in offered], dtype=np.intp)
        first = (np.cumsum(counts) - counts)[group_of]
        if (counts != 1).any():
            times = counts[group_of]
            first = np.repeat(first - (np.cumsum(times) - times), times)
            self.keep(np.repeat(np.arange(self._rows), times))
            first += np.arange(self._rows)
        alone = len(code_of) == 1
        self._codes[name] = constant_codes(self._rows) if alone else codes[first]

    def keep(self, rows: NDArray[np.intp]) -> None:
        """Makes these the rows, in this order and as often as they are named."""
        self._rows = len(rows)
        self._codes = {
            name: constant_codes(len(rows)) if len(self.domains[name]) == 1 else codes[rows]
            for name, codes in self._codes.items()
        }

    def table(self) -> PlanTable:
        """The rows as plans hold them, once every knob is added."""
        # a plan's ratio has one form, see there
        ratios = tuple(float(ratio) + 0.0 for ratio in self.domains["checkpoint_ratio"])
        return PlanTable(values=self.domains | {"checkpoint_ratio": ratios}, codes=self._codes)


_BELOW = tuple(_below(level) for level in range(len(KNOBS) + 1))
# the level from which on it is known whether a combination meets the global batch
_FED = max(level for level, knob in enumerate(KNOBS) if knob.name in ("micro_batch", "data"))


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


def build_space(around: RuleContext, workers: int) -> Space:
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
    off = [~table.is_value(name, rest) for name, rest in DEFAULTS.items()]
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
    around: RuleContext,
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


def _no_room(around: RuleContext, workers: int) -> Fault:
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
