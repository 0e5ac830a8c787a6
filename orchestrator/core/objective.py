"""What the user wants of a plan: what is best, and what any answer must keep."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Self, TypeGuard

from search_spaces.plan import Plan
from search_spaces.spec.schema import SweepSpec
from search_spaces.spec.sections import Metric
from search_spaces.trial import Estimate, Measured, MemoryReading, OutOfMemory, Record

_HOUR = 3600
PEAKS_APART = 0.005  # of the limit: what peaks of one plan may differ by from trial to trial
WORDS: Mapping[Metric, str] = {
    "samples_per_second": "samples/s",
    "samples_per_price": "samples per unit of price",
    "headroom": "share of memory left free",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """The objective, as records are judged by it.

    `lower_bounds` holds what samples per second and samples per price must reach; `price` is that
    of a rank for an hour, None if unknown; `prices` has one for each kind of nodes.
    """

    metric: Metric = "samples_per_second"
    headroom: float = 0.0
    lower_bounds: tuple[tuple[Metric, float], ...] = ()
    price: float | None = None
    prices: tuple[tuple[str, float], ...] = ()

    @classmethod
    def of(cls, spec: SweepSpec) -> Self:
        """The goal of a sweep."""
        asked = spec.objective
        bounds: dict[Metric, float | None] = {
            "samples_per_second": asked.at_least.samples_per_second,
            "samples_per_price": asked.at_least.samples_per_price,
        }
        return cls(
            metric=asked.metric,
            headroom=asked.headroom,
            lower_bounds=tuple(
                (name, least) for name, least in bounds.items() if least is not None
            ),
            price=spec.cluster.price_per_gpu_hour or None,
            prices=tuple(spec.cluster.price_on.items()),
        )

    @property
    def is_priced(self) -> bool:
        """Whether all ranks have a price."""
        return self.price is not None or bool(self.prices)

    def price_on(self, accelerator: str) -> float | None:
        """The price of a rank for an hour on nodes of this kind; None if nobody said."""
        return dict(self.prices).get(accelerator, self.price)

    def value(self, record: Record, metric: Metric | None = None) -> Estimate | None:
        """What a record shows of the metric (or of another one); None if it tells nothing of it.

        More is better: samples per second, samples per unit of price, or the free share of the
        memory limit, to half a per cent of it.
        """
        outcome = record.outcome
        if not isinstance(outcome, Measured):
            return None
        match metric or self.metric:
            case "samples_per_second":
                return outcome.samples_per_second
            case "samples_per_price":
                each = self.seconds_per_price(record.plan)
                return None if each is None else _times(outcome.samples_per_second, each)
            case "headroom":
                free = 1 - outcome.memory.share
                return Estimate(value=free, low=free - PEAKS_APART, high=free + PEAKS_APART)

    def seconds_per_price(self, plan: Plan) -> float | None:
        """Seconds that all ranks of a plan run for a unit of price; None without a price."""
        price = self.price_on(plan.accelerator)
        return None if price is None else _HOUR / (price * plan.world_size)

    def shortfalls(self, record: Record) -> Iterator[str]:
        """What a measured plan fails to keep, in words; nothing if it is feasible."""
        outcome = record.outcome
        if not isinstance(outcome, Measured):
            return
        if not within_headroom(outcome.memory, self.headroom):
            yield (
                f"its peak of {100 * outcome.memory.share:.1f} % of the limit leaves less than"
                f" {100 * self.headroom:g} % free"
            )
        for metric, least in self.lower_bounds:
            reached = self.value(record, metric)
            if reached is None or reached.value < least:
                told = "no" if reached is None else _short(reached.value)
                wanted = f"at least {_short(least)} are asked for"
                yield f"it reaches {told} {WORDS[metric]}, where {wanted}"

    def feasible(self, record: Record) -> bool:
        """Whether a plan trains, leaves the headroom free and reaches what it must."""
        return isinstance(record.outcome, Measured) and not any(self.shortfalls(record))


def within_headroom(memory: MemoryReading, headroom: float) -> bool:
    """Whether the peak leaves the share `headroom` of the limit free."""
    return memory.peak_bytes <= memory.limit_bytes * (1 - headroom)


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def _times(rate: Estimate, factor: float) -> Estimate:
    return Estimate(value=rate.value * factor, low=rate.low * factor, high=rate.high * factor)


def measured(record: Record) -> TypeGuard[Record]:
    """Whether the trial gave a measurement."""
    return isinstance(record.outcome, Measured)


def throughput(record: Record) -> float:
    """Samples per second, 0.0 where nothing was measured."""
    outcome = record.outcome
    return outcome.samples_per_second.value if isinstance(outcome, Measured) else 0.0


def score(record: Record, goal: Objective) -> float:
    """What records are compared by, minus infinity where it is not known."""
    reached = goal.value(record)
    return -math.inf if reached is None else reached.value


def ranked(records: Iterable[Record], goal: Objective) -> list[Record]:
    """The feasible records, the best first; of equals the one with the lower peak."""
    feasible = (record for record in records if goal.feasible(record))
    return sorted(feasible, key=lambda record: (-score(record, goal), _peak(record)))


def best(records: Iterable[Record], goal: Objective) -> Record | None:
    """The best feasible record."""
    return next(iter(ranked(records, goal)), None)


def ties_of_best(records: Iterable[Record], goal: Objective) -> list[Record]:
    """The feasible records whose interval overlaps the best one's, best first."""
    known = [(record, reached) for record in records if (reached := goal.value(record))]
    order = sorted(known, key=lambda each: (-each[1].value, _peak(each[0])))
    # of thousands of records few are near the best: whether others are feasible does not matter
    top = next((reached for record, reached in order if goal.feasible(record)), None)
    if top is None:
        return []
    return [record for record, reached in order if reached.overlaps(top) and goal.feasible(record)]


def record_of(records: Iterable[Record], plan: Plan) -> Record | None:
    """The record of a plan, the last if there are several."""
    return next((record for record in reversed(tuple(records)) if record.plan == plan), None)


def limit_of(record: Record) -> int | None:
    """The memory that one rank might use, in bytes; None if the trial does not say."""
    match record.outcome:
        case Measured(memory=memory):
            return memory.limit_bytes
        case OutOfMemory(limit_bytes=limit):
            return limit
        case _:
            return None


def counts(records: Iterable[Record]) -> dict[str, int]:
    """How many trials ended in which kind of outcome."""
    return dict(Counter(record.outcome.kind for record in records))


def trials_since_best(records: Sequence[Record], goal: Objective) -> int:
    """How many trials have ended since the best one did."""
    top = best(records, goal)
    if top is None:
        return len(records)
    return sum(record.ended_at > top.ended_at for record in records)


def _peak(record: Record) -> int:
    return record.outcome.memory.peak_bytes if isinstance(record.outcome, Measured) else 0
