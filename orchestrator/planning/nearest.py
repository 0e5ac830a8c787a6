"""When nothing fits: how far off the nearest plan is, and what would be enough."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from orchestrator.planning.expected import Expected, expected
from orchestrator.planning.question import SURE_TO_FIT
from orchestrator.planning.sized import Sized
from search_spaces.forecast.executions import Numbers
from search_spaces.forecast.forecast import Forecasts
from search_spaces.forecast.scales import limit_above
from search_spaces.hardware import Device


@dataclass(frozen=True, slots=True, kw_only=True)
class Nearest:
    """The plan that needs the smallest device.

    `needed_bytes` is the least limit under which it would be recommended, `missing_bytes` what
    that is above the limit at hand. `missing` shares those out to categories as the peak is.
    """

    expected: Expected
    needed_bytes: float
    missing_bytes: float
    missing: tuple[tuple[str, float], ...]


def nearest_plan(sized: Sized, headroom: float) -> Nearest:
    """The plan of a space in which none fits that is least far from fitting."""
    needed = needed_bytes(sized.forecasts, headroom)
    if sized.hosted.any():
        needed = np.where(sized.hosted, needed, np.inf)
    row = int(np.argmin(needed))
    found = expected(sized, row)
    missing = float(needed[row]) - sized.limit_bytes
    peak = found.peak_bytes.value
    return Nearest(
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
