"""Number formats for reports: rates, intervals, memory, durations, counts."""

import math

from search_spaces.specification.schema import GIB
from search_spaces.trial import Ceiling, Estimate

_SIGNIFICANT_DIGITS = 4
_UNITS = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def significant(value: float) -> str:
    """Formats a number with three significant digits, as precise as a forecast: 55.1, 8,230."""
    if not value:
        return "0"
    return number(float(f"{value:.3g}")) if value >= 1000 else f"{value:#.3g}".rstrip(".")


def decimals_of(value: float) -> int:
    """Returns the decimals that show `value` with four significant digits."""
    if not value or not math.isfinite(value):
        return 0
    return max(_SIGNIFICANT_DIGITS - 1 - math.floor(math.log10(abs(value))), 0)


def number(value: float) -> str:
    """Formats a number with four significant digits and no exponent."""
    return f"{value:,.{decimals_of(value)}f}"


def spread(estimate: Estimate) -> str:
    """Formats an estimate as `41.2 ± 0.6`: the value and half the width of its interval.

    The interval of a few steps may have no end: one wider than the value has no number.
    """
    half = (estimate.high - estimate.low) / 2
    decimals = max(decimals_of(estimate.value) - 1, 0)
    if half >= abs(estimate.value) > 0:
        return f"{estimate.value:,.{decimals}f} ± 100 % or more"
    return f"{estimate.value:,.{decimals}f} ± {half:,.{decimals}f}"


def ratio_words(ratio: Estimate) -> str:
    """Formats a ratio with its interval: `1.43 x (1.12 to 1.74)`."""
    return f"{ratio.value:.2f} x ({ratio.low:.2f} to {ratio.high:.2f})"


def relative_spread(estimate: Estimate) -> str:
    """Formats half the width of an interval in percent: `1.5 %`, or `100 % or more`."""
    half = estimate.relative_half_width
    return "100 % or more" if half >= 1 else f"{100 * half:.1f} %"


def gib(size_bytes: float) -> str:
    """Formats bytes as GiB without the unit: `0.412`, `3.41`, `74.2`."""
    size = size_bytes / GIB
    decimals = 3 if abs(size) < 1 else 2 if abs(size) < 10 else 1
    return f"{size:.{decimals}f}"


def duration(seconds: float) -> str:
    """Formats seconds: `45 s`, `3 min 20 s`, `1 h 05 min`."""
    whole = round(max(seconds, 0.0))
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    if minutes:
        return f"{minutes} min {rest:02d} s" if rest else f"{minutes} min"
    return f"{rest} s"


def plural(count: int, noun: str) -> str:
    """Formats a count with its noun: `1 trial`, `2 trials`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def count_words(count: int) -> str:
    """Formats a count with three digits and a suffix: 1.24 B, 345 M, 12 k."""
    scaled, prefix = si_scaled(count)
    if not prefix:
        return str(count)
    return f"{scaled:#.3g} {'B' if prefix == 'G' else prefix}".replace(". ", " ")


def si_scaled(value: float) -> tuple[float, str]:
    """Returns a value divided by a power of 1000, and the SI prefix of that power."""
    for factor, prefix in _UNITS:
        if abs(value) >= factor:
            return value / factor, prefix
    return value, ""


def mfu_words(mfu: float | None) -> str:
    """Formats an MFU as a percentage; "-" if it is unknown."""
    return "-" if mfu is None else f"{100 * mfu:.0f} %"


def mfu_sentence(mfu: float | None, ceiling: Ceiling | None, paper_mfu: float | None) -> str:
    """States the ceiling that an MFU is a share of, and the MFU as papers count; may be empty."""
    if mfu is None or ceiling is None:
        return ""
    origin = (
        "measured in matmuls of the model's shapes" if ceiling.measured else "by its data sheet"
    )
    scaled, prefix = si_scaled(ceiling.flops_per_second)
    sentence = f"MFU: {mfu_words(mfu)} of the device's {scaled:.3g} {prefix}FLOP/s, {origin}"
    if paper_mfu is None:
        return sentence
    return f"{sentence}; {mfu_words(paper_mfu)} of its data sheet as papers count (6 N + 12 L d T)"


def value_words(value: object) -> str:
    """Formats the value of a knob as in a specification."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def times_words(count: int) -> str:
    """Formats how often something was: `once`, `twice`, `3 times`."""
    return {1: "once", 2: "twice"}.get(count, f"{count} times")
