"""The objective: the metric to maximize, and the constraints that a feasible plan meets."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, Self, TypeGuard

from orchestrator.core.records import Record
from search_spaces.plan import Plan
from search_spaces.specification.schema import GIB, SweepSpec
from search_spaces.specification.sections import Metric
from search_spaces.trial import Estimate, Measured, MemoryReading, OutOfMemory

_HOUR = 3600
PEAK_NOISE_SHARE = 0.005  # run-to-run difference of a plan's peak memory, as a share of the limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """A constraint that a measured plan violates: its value of a metric is below the bound.

    Memory and retries of the allocator are above theirs; `reserved_share` tells how full it was.
    """

    metric: Metric | Literal["memory_gib", "allocator_retries"]
    value: float | None  # None: unknown
    bound: float
    reserved_share: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """Metric, constraints and prices by which records are compared.

    `memory_bytes` bounds the peak of a rank, None if only its limit does.
    `lower_bounds` holds the smallest samples per second and samples per price that are allowed.
    `price` is the price per rank-hour, None if unknown.
    """

    metric: Metric = "samples_per_second"
    headroom: float = 0.0
    memory_bytes: float | None = None
    lower_bounds: tuple[tuple[Metric, float], ...] = ()
    price: float | None = None

    @classmethod
    def of(cls, spec: SweepSpec) -> Self:
        """Returns the objective of a specification."""
        section = spec.objective
        metric = section.metric
        bounds: Any = section.at_least.model_dump(exclude_none=True)
        return cls(
            # of one length, the fastest plan is the best: see `at_length`
            metric="samples_per_second" if metric == "sequence_length" else metric,
            headroom=section.headroom,
            memory_bytes=None if section.memory_gib is None else section.memory_gib * GIB,
            lower_bounds=tuple(bounds.items()),
            price=spec.cluster.price_per_gpu_hour or None,
        )

    def value(self, record: Record, metric: Metric | None = None) -> Estimate | None:
        """Returns the record's value of a metric; None if it has none.

        More is better: samples per second or per unit of price, tokens per joule, or the free share
        of the memory limit, give or take half a percent of the limit.

        Args:
            record: The record of a trial.
            metric: The metric; None: that of the objective.
        """
        outcome = record.outcome
        if not isinstance(outcome, Measured):
            return None
        match metric or self.metric:
            case "samples_per_second":
                return outcome.samples_per_second
            case "samples_per_price":
                seconds = self.seconds_per_price(record.plan)
                return None if seconds is None else outcome.samples_per_second.times(seconds)
            case "tokens_per_joule":
                joules, rate = outcome.joules_per_token, outcome.samples_per_second
                return rate.times(1 / (joules * rate.value)) if joules and rate.value else None
            case "headroom":
                free = 1 - outcome.memory.share
                return Estimate(
                    value=free, low=free - PEAK_NOISE_SHARE, high=free + PEAK_NOISE_SHARE
                )

    def effective_limit(self, limit_bytes: float) -> float:
        """Returns the memory limit, or one whose usable part is `memory_bytes` if that is less."""
        if self.memory_bytes is None:
            return limit_bytes
        return min(limit_bytes, self.memory_bytes / (1 - self.headroom))

    def usable_bytes(self, limit_bytes: float) -> float:
        """Returns the memory of a rank with this limit that a feasible plan may take."""
        usable = limit_bytes * (1 - self.headroom)
        return usable if self.memory_bytes is None else min(usable, self.memory_bytes)

    def keeps_memory(self, memory: MemoryReading) -> bool:
        """Returns True if the peak is within `usable_bytes`."""
        return memory.peak_bytes <= self.usable_bytes(memory.limit_bytes)

    def seconds_per_price(self, plan: Plan) -> float | None:
        """Returns the seconds that a plan's ranks run per unit of price; None without a price."""
        return None if self.price is None else _HOUR / (self.price * plan.world_size)

    def violations(self, record: Record) -> Iterator[Violation]:
        """Yields the constraints that a measured plan violates; none if it is feasible."""
        outcome = record.outcome
        if not isinstance(outcome, Measured):
            return
        memory = outcome.memory
        if memory.peak_bytes > memory.limit_bytes * (1 - self.headroom):
            yield Violation(metric="headroom", value=1 - memory.share, bound=self.headroom)
        elif not self.keeps_memory(memory):
            bound = self.usable_bytes(memory.limit_bytes)
            yield Violation(metric="memory_gib", value=memory.peak_bytes / GIB, bound=bound / GIB)
        if thrashes(outcome.memory):
            yield Violation(
                metric="allocator_retries",
                value=outcome.memory.allocator_retries,
                bound=0,
                reserved_share=outcome.memory.reserved_share,
            )
        for metric, bound in self.lower_bounds:
            reached = self.value(record, metric)
            value = None if reached is None else reached.value
            if value is None or value < bound:
                yield Violation(metric=metric, value=value, bound=bound)

    def feasible(self, record: Record) -> bool:
        """Returns True if the plan trains within usable memory and meets the lower bounds."""
        return isinstance(record.outcome, Measured) and next(self.violations(record), None) is None


def thrashes(memory: MemoryReading) -> bool:
    """Returns True if the allocator freed its cache and retried in measured steps.

    Each retry stalls the device; a longer run keeps stalling, or runs out of memory.
    """
    return memory.allocator_retries > 0


def is_measured(record: Record) -> TypeGuard[Record]:
    """Returns True if the trial was measured."""
    return isinstance(record.outcome, Measured)


def throughput(record: Record) -> float:
    """Returns the samples per second, 0.0 if the trial was not measured."""
    outcome = record.outcome
    return outcome.samples_per_second.value if isinstance(outcome, Measured) else 0.0


def memory_of(record: Record) -> MemoryReading:
    """Returns the memory reading of a measured trial."""
    assert isinstance(record.outcome, Measured)
    return record.outcome.memory


def speedup(record: Record | None, baseline: Record | None) -> Estimate | None:
    """Returns the speed of `record` over that of `baseline`, or None unless both are measured.

    The interval treats the measurements as independent: their relative half-widths add in
    quadrature.
    """
    if record is None or baseline is None:
        return None
    outcome, reference = record.outcome, baseline.outcome
    if not (isinstance(outcome, Measured) and isinstance(reference, Measured)):
        return None
    if record.plan == baseline.plan:
        return Estimate(value=1.0, low=1.0, high=1.0)
    return quotient(outcome.samples_per_second, reference.samples_per_second)


def quotient(dividend: Estimate, divisor: Estimate) -> Estimate | None:
    """Divides one rate by another, independent one; None if either is 0."""
    if not dividend.value or not divisor.value:
        return None
    ratio = dividend.value / divisor.value
    relative = math.hypot(dividend.relative_half_width, divisor.relative_half_width)
    return Estimate(value=ratio, low=ratio * max(1 - relative, 0.0), high=ratio * (1 + relative))


def score(record: Record, objective: Objective) -> float:
    """Returns the record's value of the objective, minus infinity if it has none."""
    estimate = objective.value(record)
    return -math.inf if estimate is None else estimate.value


def ranked(records: Iterable[Record], objective: Objective) -> list[Record]:
    """Returns the feasible records, best first; of equals the one with the lower peak."""
    feasible = (record for record in records if objective.feasible(record))
    return sorted(feasible, key=lambda record: (-score(record, objective), _peak(record)))


def best(records: Iterable[Record], objective: Objective) -> Record | None:
    """Returns the best feasible record, None if there is none."""
    return next(iter(ranked(records, objective)), None)


def ties_of_best(records: Iterable[Record], objective: Objective) -> list[Record]:
    """Returns the feasible records whose interval overlaps that of the best one, best first."""
    values = [(record, value) for record in records if (value := objective.value(record))]
    values.sort(key=lambda pair: (-pair[1].value, _peak(pair[0])))
    # of thousands of records few are near the best, and the rest need no feasibility check
    top = next((value for record, value in values if objective.feasible(record)), None)
    near = [record for record, value in values if top and value.overlaps(top)]
    return [record for record in near if objective.feasible(record)]


def record_of(records: Iterable[Record], plan: Plan) -> Record | None:
    """Returns the last record of a plan, None if there is none."""
    return next((record for record in reversed(tuple(records)) if record.plan == plan), None)


def memory_limit_of(record: Record) -> int | None:
    """Returns the memory limit of a rank in bytes; None if the outcome does not have it."""
    match record.outcome:
        case Measured(memory=memory):
            return memory.limit_bytes
        case OutOfMemory(limit_bytes=limit):
            return limit
        case _:
            return None


def outcome_counts(records: Iterable[Record]) -> dict[str, int]:
    """Returns the number of trials by kind of outcome."""
    return dict(Counter(record.outcome.kind for record in records))


def _peak(record: Record) -> int:
    return record.outcome.memory.peak_bytes if isinstance(record.outcome, Measured) else 0
