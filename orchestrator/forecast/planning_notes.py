"""Notes of a planning report: caveats of its forecasts, as values."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from orchestrator.forecast.request import PlanningRequest, device_bytes
from orchestrator.forecast.table import ForecastRow
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


@dataclass(frozen=True, slots=True, kw_only=True)
class UnshownDevice:
    """Nothing was measured on devices of this type: programs are taken to reach what GPUs do."""

    kind: Literal["unshown_device"] = "unshown_device"
    device: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLimit:
    """`cluster.memory_gib` limits each rank to less than it has, or is cut to what it has."""

    kind: Literal["memory_limit"] = "memory_limit"
    device: str
    specified_bytes: int
    device_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AssumedHostMemory:
    """Plans offload, and nobody has said how much memory a node's host has."""

    kind: Literal["assumed_host_memory"] = "assumed_host_memory"
    device: str
    node_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AssumedRates:
    """Terms of the best plan's step that rest on rates of a typical server, not on a data sheet.

    `share` is their share of the step.
    """

    kind: Literal["assumed_rates"] = "assumed_rates"
    terms: tuple[str, ...]
    share: float


PlanningNote = (
    UnsupportedPrecision
    | VaryingLengths
    | EstimatedDevice
    | UnshownDevice
    | MemoryLimit
    | AssumedHostMemory
    | AssumedRates
)
# terms by the host, its bus and its drives, and by the network if ranks are on several nodes
_BY_HOST = ("launches", "offload")
_BY_NETWORK = ("data_collectives", "pipeline_hops")
_LEAST = 0.01  # share of the step from which on a term is named


def planning_notes(
    request: PlanningRequest, longest: int, mean: float, best: ForecastRow | None, *, offloads: bool
) -> tuple[PlanningNote, ...]:
    """Returns the caveats of a report on samples of these lengths, in tokens.

    `best` is the recommended plan; `offloads` is true if any legal plan needs host memory.
    """
    estimated = (EstimatedDevice(device=request.device.name),) * request.device.estimated
    unshown = (UnshownDevice(device=request.device.name),) * (request.kind == "tpu")
    varying = (VaryingLengths(longest_tokens=longest, mean_tokens=mean),)
    return (
        *estimated,
        *unshown,
        *_precision_notes(request),
        *_memory_notes(request, offloads),
        *(_rate_notes(request, best) if best else ()),
        *(varying if request.spec.data.kind != "fixed" else ()),
    )


def _memory_notes(request: PlanningRequest, offloads: bool) -> Iterator[PlanningNote]:
    device, specified = request.device, request.spec.memory_limit_bytes
    has = device_bytes(device, request.ranks[0])
    if specified and (specified > has or (specified < has and request.kind == "cuda")):
        yield MemoryLimit(device=device.name, specified_bytes=specified, device_bytes=has)
    if offloads and request.spec.host_memory_bytes is None and not device.measured:
        yield AssumedHostMemory(device=device.name, node_bytes=device.node_host_bytes)


def _rate_notes(request: PlanningRequest, best: ForecastRow) -> Iterator[AssumedRates]:
    device = request.device
    spans_nodes = best.world_size > device.node_devices
    names = () if device.measured or request.kind == "tpu" else _BY_HOST + _BY_NETWORK * spans_nodes
    seconds, whole = dict(best.seconds), sum(value for _, value in best.seconds)
    terms = tuple(name for name in names if seconds[name] >= _LEAST * whole)
    if terms:
        yield AssumedRates(terms=terms, share=sum(seconds[name] for name in terms) / whole)


def _precision_notes(request: PlanningRequest) -> Iterator[PlanningNote]:
    precision, device = request.spec.train.precision, request.device
    if precision != "fp32" and not device.peak_flops_per_second(precision):
        sixteen_bits: tuple[Precision, ...] = ("fp16", "bf16")
        supported = (other for other in sixteen_bits if device.peak_flops_per_second(other))
        yield UnsupportedPrecision(
            device=device.name, precision=precision, faster=next(supported, "fp32")
        )
