"""Columns of a forecast: properties of models and devices, per plan, case and kernel."""

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from typing import get_args

import numpy as np

from search_spaces.costs.footprint import (
    Extent,
    Footprint,
    FusedAttention,
    Matmul,
    Part,
    Pass,
    Variant,
)
from search_spaces.costs.matmul_rates import matmul_rates
from search_spaces.costs.plan_features import (
    PRECISIONS,
    AbstractColumns,
    Counts,
    Numbers,
    PlanFeatures,
)
from search_spaces.hardware.device import Architecture, Device

ARCHITECTURES: tuple[Architecture, ...] = get_args(Architecture)
# passes of a micro-batch; those of blocks are of a mean block
PASSES = (
    "embedding_forward",
    "embedding_backward",
    "block_forward",
    "block_backward",
    "block_recomputed",  # repeated by selective recomputation
    "head_forward",
    "head_backward",
)
FORWARD_FLOPS, BACKWARD_FLOPS = 4.0, 10.0
"""FLOPs of fused attention per head, query, key and element of the head: two products in forward,
five in backward, one of which recomputes the scores (Dao 2023, arXiv:2307.08691, section 3)."""
TERA = 1e12
PADDED = 128.0  # rows, columns and inner size of what a TPU's matrix unit takes at a time
_CUDNN_ATTENTION: tuple[Architecture, ...] = ("hopper", "blackwell")
"""Architectures where torch's scaled dot product takes cuDNN's attention. Its backends differ by
1.7 to 2.3 x there (transformers, issue 48163)."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CaseColumns(AbstractColumns):
    """Properties of the device in each case: a row for each case."""

    peak_flops: Numbers
    attention_flops: Numbers  # peak of attention, which is not computed in 8 bits
    bandwidth: Numbers  # bytes per second
    multiprocessors: Numbers
    launch_seconds: Numbers
    block_launch_seconds: Numbers  # measured, of shape (cases, 3): as in `BlockLaunches`; or nan
    architecture: Counts  # index into ARCHITECTURES
    tensor: Numbers
    tensor_link: Numbers  # bytes per second between tensor ranks
    slow_link: Numbers  # 1 if the link is PCIe, else 0
    watts_per_teraflops: Numbers
    tensor_latency: Numbers  # in hops; hops between nodes count double
    compiled: Numbers  # 1 or 0
    whole_compiled: Numbers  # embedding and head too, not blocks alone
    head_compiled: Numbers  # with the loss
    cudnn_attention: Numbers
    fused: Numbers
    sixteen_bits: Numbers
    measured: Numbers  # 1 if rates were measured, 0 if they are from data sheets
    collective_seconds: Numbers  # measured, of a small collective; 0 if unknown
    on_cpu: Numbers


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PartBytes(AbstractColumns):
    """Bytes that the parts hold for one micro-batch: a row for each case."""

    embedding_saved: Numbers
    block_saved: Numbers
    block_copies: Numbers  # saved independently of the micro-batch: cast weights
    block_kept: Numbers
    block_input: Numbers
    head_saved: Numbers
    block_forward_transient: Numbers
    block_backward_transient: Numbers
    head_forward_transient: Numbers
    head_backward_transient: Numbers


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowColumns(AbstractColumns):
    """Properties of the model and the device of each plan: a row for each plan."""

    case: Counts
    depth: Numbers
    block_trained: Numbers  # parameters in a tensor rank's slice of a block
    block_frozen: Numbers
    block_quantized_bytes: Numbers
    embedding_trained: Numbers
    embedding_frozen: Numbers
    head_trained: Numbers
    head_frozen: Numbers
    tied: Numbers  # parameters that embedding and head share
    largest_weight: Numbers
    tokens: Numbers  # mean of a sample
    bandwidth: Numbers
    link: Numbers
    slow_link: Numbers
    network: Numbers
    node_devices: Numbers
    pcie: Numbers
    host_bandwidth: Numbers
    host_memory: Numbers  # of a node
    nvme: Numbers
    device_bytes: Numbers
    context_bytes: Numbers
    measured: Numbers  # as in `CaseColumns`
    collective_seconds: Numbers
    on_cpu: Numbers


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Kernels(AbstractColumns):
    """Matmuls and attention kernels: a row for each kernel."""

    slot: Counts  # case * len(PASSES) + pass
    flops: Numbers  # of all calls
    batch: Numbers
    rows: Numbers
    columns: Numbers
    inner: Numbers
    element_bytes: Numbers
    is_attention: Numbers  # 1 or 0
    calls: Numbers
    measured_flops: Numbers  # FLOP/s of a matmul of this shape, from measured ones; nan if unknown


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PassSums(AbstractColumns):
    """Other work of each pass, besides the kernels: arrays of shape (cases, PASSES)."""

    traffic_bytes: Numbers
    launches: Numbers
    exchanged_bytes: Numbers
    exchanges: Numbers


def weighted_passes(variant: Variant, depth: int) -> tuple[tuple[tuple[float, Pass], ...], ...]:
    """Returns for each of `PASSES` its traced passes with their weights, the shares of blocks."""
    kinds = mean_part(variant, depth)
    return (
        ((1.0, variant.embedding.forward),),
        ((1.0, variant.embedding.backward),),
        tuple((share, part.forward) for share, part in kinds),
        tuple((share, part.backward) for share, part in kinds),
        tuple((share, part.recomputed) for share, part in kinds),
        ((1.0, variant.head.forward),),
        ((1.0, variant.head.backward),),
    )


def mean_part(variant: Variant, depth: int) -> tuple[tuple[float, Part], ...]:
    """Returns the kinds of blocks, each with its share of the depth; empty without blocks."""
    return tuple((len(kind.indices) / depth, kind.part) for kind in variant.blocks if depth)


def kernels_of(
    variant: Variant, depth: int, micro_batch: Numbers, tensor: Numbers, case: Counts
) -> Kernels:
    """Returns the kernels of cases that share a variant.

    Args:
        variant: Traced costs.
        depth: Blocks of the model.
        micro_batch: Samples of each case.
        tensor: Tensor degree of each case.
        case: Number of each case.
    """
    columns: list[tuple[Numbers, ...]] = []
    for index, parts in enumerate(weighted_passes(variant, depth)):
        slot = (case * len(PASSES) + index).astype(np.float64)
        fused_flops = BACKWARD_FLOPS if PASSES[index].endswith("backward") else FORWARD_FLOPS
        for share, traced in parts:
            calls: tuple[Matmul | FusedAttention, ...] = (*traced.matmuls, *traced.attentions)
            columns += [
                (slot, *_kernel(call, share, fused_flops, micro_batch, tensor)) for call in calls
            ]
    names = [field.name for field in fields(Kernels)]
    filled = zip(*columns, strict=True) if columns else [[np.zeros(0)]] * len(names[:-1])
    stacked = dict(zip(names, map(np.concatenate, filled), strict=False))
    stacked["slot"] = stacked["slot"].astype(np.int64)
    return Kernels(**stacked, measured_flops=np.full(len(stacked["slot"]), np.nan))


def with_measured_rates(kernels: Kernels, device: Device, cases: PlanFeatures) -> Kernels:
    """Returns the kernels with the rates that the device's measurements tell for their shapes."""
    case, which = np.divmod(kernels.slot, len(PASSES))
    in_block = np.array(["block" in name for name in PASSES])[which]
    sixteen = np.minimum(cases.precision, PRECISIONS.index("bf16"))
    # embedding and head are not computed in 8 bits
    precision = np.where(in_block, cases.precision[case], sixteen[case])
    rates = np.full(len(kernels.slot), np.nan)
    for index, name in enumerate(PRECISIONS):
        # a batch of small matmuls is another kernel
        own = (precision == index) & (kernels.is_attention == 0) & (kernels.batch <= 1)
        shape = (kernels.rows[own], kernels.columns[own], kernels.inner[own])
        found = matmul_rates(device.matmul_points, name, *shape)
        if found is not None:
            rates[own] = found
    return replace(kernels, measured_flops=rates)


def padded_to_units(kernels: Kernels, multiple: float) -> Kernels:
    """Returns the kernels as units compute them that take each size as a multiple of a number.

    Zeros fill the rest: they take time, like numbers.

    Source:
        https://docs.cloud.google.com/tpu/docs/system-architecture-tpu-vm: units of 128 x 128, since
        v6e of 256 x 256.
    """
    sizes = {name: getattr(kernels, name) for name in ("rows", "columns", "inner")}
    padded = {name: np.ceil(size / multiple) * multiple for name, size in sizes.items()}
    share = np.prod([padded[name] / np.maximum(sizes[name], 1.0) for name in sizes], axis=0)
    return replace(kernels, **padded, flops=kernels.flops * share)


def pass_sums(variant: Variant, depth: int, micro_batch: Numbers, tensor: Numbers) -> PassSums:
    """Returns the other work of cases that share a variant, besides the kernels."""
    passes = weighted_passes(variant, depth)

    def summed(name: str) -> Numbers:
        return np.stack(
            [
                sum(
                    (share * _extent(traced, name, micro_batch, tensor) for share, traced in parts),
                    start=np.zeros(len(micro_batch)),
                )
                for parts in passes
            ],
            axis=1,
        )

    return PassSums(**{field.name: summed(field.name) for field in fields(PassSums)})


def _extent(traced: Pass, name: str, micro_batch: Numbers, tensor: Numbers) -> Numbers:
    value = getattr(traced, name)
    extent = Extent(fixed=value) if isinstance(value, int) else value
    return extent.at(micro_batch, tensor)


def _kernel(
    call: Matmul | FusedAttention,
    share: float,
    fused_flops: float,
    micro_batch: Numbers,
    tensor: Numbers,
) -> Iterator[Numbers]:
    """Yields the columns of a call in `Kernels`, from its FLOPs to the number of calls."""
    if isinstance(call, Matmul):
        extents, flops = (call.batch, call.rows, call.columns, call.inner), 2.0
    else:
        extents = (call.heads, call.queries, call.keys, Extent(fixed=call.head_size))
        flops = fused_flops * (0.5 if call.causal else 1.0)
    calls = share * call.count
    batch, rows, columns, inner = (extent.at(micro_batch, tensor) for extent in extents)
    yield flops * calls * batch * rows * columns * inner
    yield from (batch, rows, columns, inner)
    for value in (call.element_bytes, isinstance(call, FusedAttention), calls):
        yield np.full(micro_batch.shape, float(value))


def row_columns(
    footprint: Footprint, device: Device, executions: PlanFeatures, case: Counts
) -> RowColumns:
    """Returns the row columns of plans.

    Args:
        footprint: Traced costs of the model.
        device: The device.
        executions: Features of the plans.
        case: Case number of each plan.
    """
    count = len(executions)
    names = _parameters(footprint.variants[0], footprint.depth, np.ones(1))
    parameters = {name: np.zeros(count) for name in names}
    for number, variant in enumerate(footprint.variants):
        rows = executions.variant == number
        if not rows.any():
            continue
        tensor = executions.tensor[rows].astype(float)
        for name, value in _parameters(variant, footprint.depth, tensor).items():
            parameters[name][rows] = value
    constants = _device_constants(device) | {
        "depth": footprint.depth,
        "tokens": footprint.mean_tokens,
        "link": device.link_bytes_per_second,
        "network": device.network_bytes_per_second,
        "node_devices": device.node_devices,
        "pcie": device.pcie_bytes_per_second,
        "host_bandwidth": device.host_bandwidth_bytes_per_second,
        "host_memory": device.node_host_bytes,
        "nvme": 2
        / (1 / device.nvme_read_bytes_per_second + 1 / device.nvme_write_bytes_per_second),
        "device_bytes": device.memory_bytes,
        "context_bytes": device.context_bytes,
    }
    # tied weights are split like the head
    head = parameters["head_trained"] + parameters["head_frozen"]
    return RowColumns(
        case=case,
        tied=np.minimum(float(footprint.tied_parameters), head),
        **parameters,
        **{name: np.full(count, float(value)) for name, value in constants.items()},
    )


def _device_constants(device: Device) -> dict[str, float]:
    """Returns the columns of plans and of cases that a device alone decides."""
    return {
        "bandwidth": device.bandwidth_bytes_per_second,
        "slow_link": device.link_kind == "pcie",
        "measured": device.measured,
        "collective_seconds": _small_collective(device),
        "on_cpu": device.architecture == "cpu",
    }


def _parameters(variant: Variant, depth: int, tensor: Numbers) -> dict[str, Numbers]:
    def of(part: Part, name: str) -> Numbers:
        return getattr(part, name).at(0.0, tensor)

    blocks = mean_part(variant, depth)
    parts = [variant.embedding, variant.head, *(part for _, part in blocks)]
    largest = max(part.largest_weight for part in parts)
    zero = np.zeros(len(tensor))
    return {
        f"block_{name}": sum((share * of(part, name) for share, part in blocks), zero)
        for name in ("trained", "frozen", "quantized_bytes")
    } | {
        "embedding_trained": of(variant.embedding, "trained"),
        "embedding_frozen": of(variant.embedding, "frozen"),
        "head_trained": of(variant.head, "trained"),
        "head_frozen": of(variant.head, "frozen"),
        "largest_weight": np.full(len(tensor), largest) / tensor,
    }


def case_columns(footprint: Footprint, device: Device, cases: PlanFeatures) -> CaseColumns:
    """Returns the case columns, from the features of one plan of each case."""
    count = len(cases)
    tensor = cases.tensor.astype(float)
    inside = tensor <= device.node_devices
    local = np.minimum(tensor, device.node_devices)
    sdpa = np.array([variant.attention == "sdpa" for variant in footprint.variants])[cases.variant]
    heads = np.array([one.loss == "compiled" for one in footprint.variants])[cases.variant]
    launches = (
        device.block_launch_seconds,
        device.recomputed_launch_seconds,
        device.compiled_launch_seconds,
    )
    cudnn = cases.own_loop & sdpa & (device.architecture in _CUDNN_ATTENTION)
    across = np.minimum(device.link_bytes_per_second, device.network_bytes_per_second * local)
    return CaseColumns(
        peak_flops=_peaks(device)[cases.precision],
        attention_flops=_peaks(device)[np.minimum(cases.precision, PRECISIONS.index("bf16"))],
        **{name: np.full(count, float(one)) for name, one in _device_constants(device).items()},
        multiprocessors=np.full(count, float(device.multiprocessors)),
        launch_seconds=np.full(count, device.launch_seconds),
        block_launch_seconds=np.tile(np.array(launches, dtype=np.float64), (count, 1)),
        architecture=np.full(count, ARCHITECTURES.index(device.architecture)),
        tensor=tensor,
        tensor_link=np.where(inside, device.link_bytes_per_second, across),
        watts_per_teraflops=device.power_watts / _peaks(device)[cases.precision] * TERA,
        tensor_latency=np.where(inside, 1.0, 2.0) * np.log2(np.maximum(tensor, 1.0)),
        compiled=cases.compiled.astype(float),
        whole_compiled=np.where(cases.own_loop, 0.0, 1.0),
        head_compiled=heads.astype(float),
        cudnn_attention=cudnn.astype(float),
        fused=cases.fused.astype(float),
        sixteen_bits=(cases.precision >= PRECISIONS.index("fp16")).astype(float),
    )


def _small_collective(device: Device) -> float:
    smallest = min((point[2] for point in device.collective_points), default=0)
    seconds = [point[3] for point in device.collective_points if point[2] == smallest]
    return float(np.mean(seconds)) if seconds else 0.0


def _peaks(device: Device) -> Numbers:
    """Returns peaks in the order of `PRECISIONS`; a precision without own units has that of fp32.

    A peak is the best measurement of any shape, or else the dense peak of the data sheet. Where
    bf16 is measured but not 8 bits, these reach the same share of theirs.
    """
    best = {name: device.peak_flops_per_second(name) for name in PRECISIONS}
    measured: dict[str, float] = {}
    for name, *_, rate in device.matmul_points:
        measured[name] = max(measured.get(name, 0.0), rate)
    if "bf16" in measured and best["bf16"]:
        measured.setdefault("fp8", best["fp8"] * measured["bf16"] / best["bf16"])
    peaks = np.array([*(best | measured).values()])
    return np.where(peaks > 0, peaks, peaks[0])


def part_bytes(variant: Variant, depth: int, micro_batch: Numbers, tensor: Numbers) -> PartBytes:
    """Returns the bytes of the parts, a row for each micro-batch and tensor degree."""
    zero = np.zeros(len(micro_batch))

    def of(part: Part, name: str) -> Numbers:
        return attrgetter(name)(part).at(micro_batch, tensor)

    def mean(name: str) -> Numbers:
        return sum((share * of(part, name) for share, part in mean_part(variant, depth)), zero)

    def largest(name: str) -> Numbers:
        return np.max([zero, *(of(kind.part, name) for kind in variant.blocks)], axis=0)

    saved = ((share, part.saved_bytes) for share, part in mean_part(variant, depth))
    copies = sum((share * size.at(0.0, tensor) for share, size in saved), zero)
    return PartBytes(
        embedding_saved=of(variant.embedding, "saved_bytes"),
        block_saved=mean("saved_bytes"),
        block_copies=copies,
        block_kept=mean("kept_bytes"),
        block_input=mean("input_bytes"),
        head_saved=of(variant.head, "saved_bytes"),
        block_forward_transient=largest("forward.transient_bytes"),
        block_backward_transient=largest("backward.transient_bytes"),
        head_forward_transient=of(variant.head, "forward.transient_bytes"),
        head_backward_transient=of(variant.head, "backward.transient_bytes"),
    )
