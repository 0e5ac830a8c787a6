"""Alternatives when no plan fits: the closest plan, larger devices, and more devices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from orchestrator.forecast.request import RECOMMENDED_FIT_PROBABILITY
from orchestrator.forecast.table import ForecastRow, ForecastTable
from search_spaces.costs.calibration import limit_for_probability
from search_spaces.costs.forecast import Forecasts
from search_spaces.costs.plan_features import Numbers
from search_spaces.hardware.device import Device

MOST_RANKS = 2**17  # beyond any existing cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosestPlan:
    """The plan with the smallest memory shortfall.

    `needed_bytes` is the smallest memory limit under which it would be recommended, and
    `missing_bytes` the shortfall against the actual limit. `missing` splits the shortfall into
    categories, in proportion to the peak.
    """

    expected: ForecastRow
    needed_bytes: float
    missing_bytes: float
    missing: tuple[tuple[str, float], ...]


def closest_plan(sized: ForecastTable, headroom: float) -> ClosestPlan:
    """Returns the plan closest to fitting, for a space in which none fits."""
    needed = needed_bytes(sized.forecasts, headroom)
    if sized.hosted.any():
        needed = np.where(sized.hosted, needed, np.inf)
    row = int(np.argmin(needed))
    closest = sized.row(row)
    missing = float(needed[row]) - sized.limit_bytes
    peak = closest.forecast.peak_bytes.value
    return ClosestPlan(
        expected=closest,
        needed_bytes=float(needed[row]),
        missing_bytes=missing,
        missing=tuple((name, missing * held / peak) for name, held in closest.held_bytes if held),
    )


def needed_bytes(forecasts: Forecasts, headroom: float) -> Numbers:
    """Returns the smallest memory limit under which each plan would be recommended."""
    for_headroom = forecasts.peak_bytes / (1 - headroom)
    for_confidence = limit_for_probability(
        forecasts.peak_bytes, forecasts.peak_deviation, RECOMMENDED_FIT_PROBABILITY
    )
    limits: Numbers = np.maximum(for_headroom, for_confidence)
    return limits


def smallest_suitable(
    needed: float, beside: Device, devices: tuple[Device, ...]
) -> tuple[Device, ...]:
    """Returns the smallest devices with enough memory.

    Args:
        needed: Memory per device, in bytes.
        beside: The device to replace; a replacement also needs its 16-bit precisions.
        devices: The catalogue.

    Returns:
        All devices within 5 % of the smallest suitable memory size.
    """
    suitable = [
        device
        for device in devices
        if device.memory_bytes >= needed
        and device.link_kind != "memory"
        and (device.node_devices > 1 or device.link_kind != "pcie")  # else a part of a GPU: MIG
        and (device.bf16_flops_per_second > 0) >= (beside.bf16_flops_per_second > 0)
    ]
    smallest = min((device.memory_bytes for device in suitable), default=0)
    return tuple(device for device in suitable if device.memory_bytes <= 1.05 * smallest)


def sizes_between(least: int, most: int, whole: int) -> tuple[int, ...]:
    """Returns usual device counts: powers of two, and those times one and a half.

    Args:
        least: The smallest count.
        most: The largest count.
        whole: Devices per node; larger counts are multiples of it.
    """
    powers = [2**power for power in range(most.bit_length())]
    sizes = {size for power in powers for size in (power, power + power // 2)}
    return tuple(
        sorted(
            size for size in sizes if least <= size <= most and (size <= whole or size % whole == 0)
        )
    )


def min_devices(
    fits: Callable[[int], bool], *, start: int, whole: int, named: tuple[int, ...]
) -> int | None:
    """Returns the smallest device count on which a plan fits; None if none does to `MOST_RANKS`.

    Bisects powers of two, assuming that if one fits, the next one does. Between the largest that
    does not fit and the smallest that does, it tries the count halfway and the user's counts.

    Args:
        fits: Tells if any plan fits on a count of devices; expensive, so called rarely.
        start: The search begins at the power of two at or below this count.
        whole: Devices per node.
        named: Counts from the user.
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
    candidates = set(sizes_between(below + 1, 2**high - 1, whole))
    candidates |= {size for size in named if below < size < 2**high}
    return next((size for size in sorted(candidates) if fits(size)), 2**high)
