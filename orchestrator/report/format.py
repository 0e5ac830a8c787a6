"""Figures as text: rates, intervals, memory, durations, counts."""

from __future__ import annotations

import math
from collections.abc import Iterator

from search_spaces.hardware import Device
from search_spaces.spec.schema import GIB
from search_spaces.trial import (
    Estimate,
)

_SIGNIFICANT_DIGITS = 4
_UNITS = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


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


def count_words(count: int) -> str:
    """A count with three digits and its unit: 1.24 B, 345 M, 12 k."""
    for factor, unit in ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "k")):
        if count >= factor:
            return f"{count / factor:#.3g} {unit}".replace(". ", " ")
    return str(count)


def device_rows(device: Device) -> Iterator[tuple[str, str, str]]:
    """Rows of what, how much and at which size; the fastest point stands for its kind."""
    for precision in dict.fromkeys(point[0] for point in device.matmul_points):
        points = [point for point in device.matmul_points if point[0] == precision]
        _, rows, columns, inner, rate = max(points, key=lambda point: point[-1])
        yield f"matmul {precision}", f"{_scaled(rate)}FLOP/s", f"{rows} x {inner} x {columns}"
    yield "memory, copied", _rate(device.bandwidth_bytes_per_second), "read and written"
    if device.link_kind != "memory":
        yield "host and device", _rate(device.pcie_bytes_per_second), "pinned, the slower way"
    if device.pageable_bytes_per_second is not None:
        yield "", _rate(device.pageable_bytes_per_second), "not pinned"
    for collective in dict.fromkeys(point[0] for point in device.collective_points):
        points_of = [point for point in device.collective_points if point[0] == collective]
        _, ranks, size, seconds = max(points_of, key=lambda point: point[2])
        words = collective.replace("_", "-")
        yield words, _rate(size / seconds), f"{size / 2**20:.0f} MiB, {ranks} ranks"
    yield "drive, read", _rate(device.nvme_read_bytes_per_second), _way(device)
    yield "drive, written", _rate(device.nvme_write_bytes_per_second), _way(device)
    yield "launch", f"{device.launch_seconds * 1e6:.1f} µs", "from one operator to the next"
    if device.cpu_adam_elements_per_second is not None:
        adam = f"{_scaled(device.cpu_adam_elements_per_second)}elements/s"
        yield "Adam on the host", adam, "fp32, each rank"


def _way(device: Device) -> str:
    source = device.source_of("nvme_read_bytes_per_second") or ""
    return source.partition(" with ")[2] or source.partition(" through ")[2]


def _rate(bytes_per_second: float) -> str:
    return f"{_scaled(bytes_per_second)}B/s"


def _scaled(value: float) -> str:
    """With a decimal prefix: 1.35e12 is "1.35 T"."""
    for factor, prefix in _UNITS:
        if value >= factor:
            return f"{value / factor:.3g} {prefix}"
    return f"{value:.3g} "
