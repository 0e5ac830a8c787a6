"""Outcomes and quantities in words: one wording for views, reports and MLflow."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

from orchestrator.core.events import LIKELY_TO_FIT
from search_spaces.estimate import Estimate
from search_spaces.expectation import Expectation
from search_spaces.outcome import Measured, Outcome, OutOfMemory, Refused, sentence
from search_spaces.record import Record
from search_spaces.spec.schema import GIB

KIND_WORDS: Mapping[str, str] = MappingProxyType(
    {
        "measured": "measured",
        "out_of_memory": "out of memory",
        "timed_out": "timed out",
        "crashed": "crashed",
        "refused": "refused",
        "diverged": "diverged",
        "cancelled": "cancelled",
    }
)

_SIGNIFICANT_DIGITS = 4


def outcome_words(outcome: Outcome) -> str:
    """The outcome's sentence on one line, labelled where the device had lowered its clocks."""
    words = " ".join(sentence(outcome).split())  # a crash's reason may span lines
    if isinstance(outcome, Measured) and outcome.conditions.throttled:
        return f"{words} (throttled: {', '.join(outcome.conditions.throttled)})"
    return words


def brief_outcome(outcome: Outcome) -> str:
    """The outcome in fewer words, for narrow tables."""
    match outcome:
        case OutOfMemory(where=where):
            excess = outcome.excess
            wanted = "" if excess is None else f", wanted {100 * (1 + excess):.0f} %"
            return f"out of {'' if where == 'device' else f'{where} '}memory{wanted}"
        case Refused(rule=rule):
            return f"refused: {rule}"
        case _:
            return outcome_words(outcome)


def record_words(record: Record, *, brief: bool = False) -> str:
    """How the trial ended, beside what was expected of it.

    A measurement has its speed beside it, `41.20 samples/s ± 1.5 % (forecast 39.8)`, and what
    ran out of memory the peak that was expected.
    """
    words = brief_outcome(record.outcome) if brief else outcome_words(record.outcome)
    if record.forecast is None:
        return words
    match record.outcome:
        case Measured():
            return f"{words} (forecast {rate(record.forecast.samples_per_second.value)})"
        case OutOfMemory(where="device"):
            return f"{words} (forecast {_peak_words(record.forecast)})"
        case _:
            return words


def forecast_words(forecast: Expectation, why: str) -> str:
    """What is expected, `39.8 samples/s, 0.310 GiB`; how likely it fits where that is not sure.

    Unless the reason for the trial says it, which knows what other trials showed beside.
    """
    told = LIKELY_TO_FIT in why
    peak = f"{gib(forecast.peak_bytes.value)} GiB" if told else _peak_words(forecast)
    return f"{rate(forecast.samples_per_second.value)} samples/s, {peak}"


def _peak_words(forecast: Expectation) -> str:
    peak = f"{gib(forecast.peak_bytes.value)} GiB"
    percent = round(100 * forecast.fits)
    return peak if percent == 100 else f"{peak}, fits with {percent} %"


def rate(samples_per_second: float) -> str:
    """A speed with the three digits that are worth telling of a forecast."""
    return f"{samples_per_second:,.{max(decimals_of(samples_per_second) - 1, 0)}f}"


def decimals_of(value: float) -> int:
    """Decimals that show `value` with four significant digits."""
    if not value or not math.isfinite(value):
        return 0
    return max(_SIGNIFICANT_DIGITS - 1 - math.floor(math.log10(abs(value))), 0)


def number(value: float) -> str:
    """A number with four significant digits and no exponent."""
    return f"{value:,.{decimals_of(value)}f}"


def spread(estimate: Estimate) -> str:
    """Value ± half of the interval, in the value's unit and decimals."""
    half = (estimate.high - estimate.low) / 2
    decimals = max(decimals_of(estimate.value) - 1, 0)
    return f"{estimate.value:,.{decimals}f} ± {half:,.{decimals}f}"


def gib(size_bytes: float) -> str:
    """Bytes as GiB without the unit: `0.412`, `3.41`, `74.2`."""
    size = size_bytes / GIB
    decimals = 3 if abs(size) < 1 else 2 if abs(size) < 10 else 1
    return f"{size:.{decimals}f}"


def duration(seconds: float) -> str:
    """Seconds in words: `45 s`, `3 min 20 s`, `1 h 05 min`."""
    whole = round(max(seconds, 0.0))
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    if minutes:
        return f"{minutes} min {rest:02d} s" if rest else f"{minutes} min"
    return f"{rest} s"


def plural(count: int, noun: str) -> str:
    """`1 trial`, `2 trials`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def counts_words(counts: Mapping[str, int]) -> str:
    """How trials ended: `9 measured, 2 out of memory`."""
    order = [kind for kind in KIND_WORDS if counts.get(kind)]
    return ", ".join(f"{counts[kind]} {KIND_WORDS[kind]}" for kind in order)
