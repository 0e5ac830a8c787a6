"""When nothing fits: how far off the nearest plan is, and what would be enough."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from orchestrator.forecast.request import SURE_TO_FIT
from orchestrator.forecast.table import Expected, ForecastTable, expected
from search_spaces.costs.calibration import limit_above
from search_spaces.costs.forecast import Forecasts
from search_spaces.costs.plan_features import Numbers
from search_spaces.hardware import Device

MOST_RANKS = 2**17  # beyond any cluster there is


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosestPlan:
    """The plan that needs the smallest device.

    `needed_bytes` is the least limit under which it would be recommended, `missing_bytes` what
    that is above the limit at hand. `missing` shares those out to categories as the peak is.
    """

    expected: Expected
    needed_bytes: float
    missing_bytes: float
    missing: tuple[tuple[str, float], ...]


def closest_plan(sized: ForecastTable, headroom: float) -> ClosestPlan:
    """The plan of a space in which none fits that is least far from fitting."""
    needed = needed_bytes(sized.forecasts, headroom)
    if sized.hosted.any():
        needed = np.where(sized.hosted, needed, np.inf)
    row = int(np.argmin(needed))
    found = expected(sized, row)
    missing = float(needed[row]) - sized.limit_bytes
    peak = found.peak_bytes.value
    return ClosestPlan(
        expected=found,
        needed_bytes=float(needed[row]),
        missing_bytes=missing,
        missing=tuple((name, missing * held / peak) for name, held in found.held_bytes if held),
    )


def needed_bytes(forecasts: Forecasts, headroom: float) -> Numbers:
    """The least limit under which each plan would be recommended."""
    for_line = forecasts.peak_bytes / (1 - headroom)
    for_certainty = limit_above(forecasts.peak_bytes, forecasts.peak_deviation, SURE_TO_FIT)
    needed: Numbers = np.maximum(for_line, for_certainty)
    return needed


def large_enough(needed: float, beside: Device, devices: tuple[Device, ...]) -> tuple[Device, ...]:
    """Devices of the catalogue with that much memory, the smallest first, those of one size all.

    Only what can do what `beside` can: no device without its 16-bit precisions.
    """
    able = [
        device
        for device in devices
        if device.memory_bytes >= needed
        and device.link_kind != "memory"
        and (device.bf16_flops_per_second > 0) >= (beside.bf16_flops_per_second > 0)
    ]
    least = min((device.memory_bytes for device in able), default=0)
    return tuple(device for device in able if device.memory_bytes <= 1.05 * least)


def sizes_between(least: int, most: int, whole: int) -> tuple[int, ...]:
    """Counts of devices that people use: powers of two, and one and a half of those.

    Args:
        least: The smallest.
        most: The largest.
        whole: Devices of a node; larger counts are whole nodes.
    """
    powers = [2**power for power in range(most.bit_length())]
    found = {size for power in powers for size in (power, power + power // 2)}
    return tuple(
        sorted(
            size for size in found if least <= size <= most and (size <= whole or size % whole == 0)
        )
    )


def min_devices(
    fits: Callable[[int], bool], *, start: int, whole: int, named: tuple[int, ...]
) -> int | None:
    """The least count for which something fits, None if there is none up to `MOST_RANKS`.

    Where a power of two fits, so does the next one; that is what is searched by halves. Between
    the greatest that does not and the least that does, the count half way and those that the
    user named are tried.

    Args:
        fits: Whether any plan fits on so many devices; asked as rarely as can be.
        start: The power of two at or below this is asked first.
        whole: Devices of a node.
        named: Counts that the user asks about.
    """
    exponent = max(start, 1).bit_length() - 1
    if fits(2**exponent):
        low, high = -1, exponent
    else:
        low = exponent
        high = exponent + 1
        while not fits(2**high):
            low, high = high, high + 1
            if 2**high > MOST_RANKS:
                return min((size for size in named if fits(size)), default=None)
    while high - low > 1:
        middle = (low + high) // 2
        if fits(2**middle):
            high = middle
        else:
            low = middle
    below = 2**low if low >= 0 else 0
    between = set(sizes_between(below + 1, 2**high - 1, whole))
    between |= {size for size in named if below < size < 2**high}
    return next((size for size in sorted(between) if fits(size)), 2**high)
