"""Notes of a planning report: caveats of its forecasts, as values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from orchestrator.forecast.request import PlanningRequest
from search_spaces.plan import Precision


@dataclass(frozen=True, slots=True, kw_only=True)
class UnsupportedPrecision:
    """The device lacks units for a precision, which is forecast at the speed of fp32.

    `faster` is a precision that it has units for.
    """

    kind: Literal["unsupported_precision"] = "unsupported_precision"
    device: str
    precision: Precision
    faster: Precision


@dataclass(frozen=True, slots=True, kw_only=True)
class VaryingLengths:
    """Samples differ in length.

    Peaks are for the longest sample, step times for rows as full as each batching makes them.
    """

    kind: Literal["varying_lengths"] = "varying_lengths"
    longest_tokens: int
    mean_tokens: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimatedDevice:
    """The device is unknown: peaks and bandwidth follow from the properties that CUDA reports."""

    kind: Literal["estimated_device"] = "estimated_device"
    device: str


PlanningNote = UnsupportedPrecision | VaryingLengths | EstimatedDevice


def planning_notes(request: PlanningRequest, longest: int, mean: float) -> tuple[PlanningNote, ...]:
    """Returns the caveats of a report.

    Args:
        request: The request.
        longest: Tokens of the longest sample.
        mean: Mean tokens of a sample.
    """
    estimated = (EstimatedDevice(device=request.device.name),) * request.device.estimated
    return (*estimated, *_precision_notes(request), *_length_notes(request, longest, mean))


def _precision_notes(request: PlanningRequest) -> Iterator[PlanningNote]:
    precision, device = request.spec.train.precision, request.device
    if precision != "fp32" and not device.peak_flops_per_second(precision):
        sixteen_bits: tuple[Precision, ...] = ("fp16", "bf16")
        supported = (other for other in sixteen_bits if device.peak_flops_per_second(other))
        yield UnsupportedPrecision(
            device=device.name, precision=precision, faster=next(supported, "fp32")
        )


def _length_notes(request: PlanningRequest, longest: int, mean: float) -> Iterator[PlanningNote]:
    if request.spec.data.kind != "fixed":
        yield VaryingLengths(longest_tokens=longest, mean_tokens=mean)
