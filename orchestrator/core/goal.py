"""What the user wants of a plan: what is best, and what any answer must keep."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Self

from search_spaces.estimate import Estimate
from search_spaces.outcome import Measured, MemoryReading
from search_spaces.plan import Plan
from search_spaces.record import Record
from search_spaces.spec.objective_section import Metric
from search_spaces.spec.schema import SweepSpec

_HOUR = 3600
PEAKS_APART = 0.005  # of the limit: what peaks of one plan may differ by from trial to trial
WORDS: Mapping[Metric, str] = {
    "samples_per_second": "samples/s",
    "samples_per_price": "samples per unit of price",
    "headroom": "share of memory left free",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """The objective, as records are judged by it.

    `least` holds what samples per second and samples per price must reach; `price` that of a rank
    for an hour, None if nobody said; `prices` those of each kind of nodes, if they are told apart.
    """

    metric: Metric = "samples_per_second"
    headroom: float = 0.0
    least: tuple[tuple[Metric, float], ...] = ()
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
            least=tuple((name, least) for name, least in bounds.items() if least is not None),
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
        if not keeps_headroom(outcome.memory, self.headroom):
            yield (
                f"its peak of {100 * outcome.memory.share:.1f} % of the limit leaves less than"
                f" {100 * self.headroom:g} % free"
            )
        for metric, least in self.least:
            reached = self.value(record, metric)
            if reached is None or reached.value < least:
                told = "no" if reached is None else _short(reached.value)
                wanted = f"at least {_short(least)} are asked for"
                yield f"it reaches {told} {WORDS[metric]}, where {wanted}"

    def feasible(self, record: Record) -> bool:
        """Whether a plan trains, leaves the head-room free and reaches what it must."""
        return isinstance(record.outcome, Measured) and not any(self.shortfalls(record))


def keeps_headroom(memory: MemoryReading, headroom: float) -> bool:
    """Whether the peak leaves the share `headroom` of the limit free."""
    return memory.peak_bytes <= memory.limit_bytes * (1 - headroom)


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def _times(rate: Estimate, factor: float) -> Estimate:
    return Estimate(value=rate.value * factor, low=rate.low * factor, high=rate.high * factor)
