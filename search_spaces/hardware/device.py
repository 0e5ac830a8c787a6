"""Device: what an accelerator can do, and its share of a typical node, as one frozen value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Annotated, Literal

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

LinkKind = Literal["nvlink", "xgmi", "ici", "pcie", "memory"]
"""Link between the devices of a node; "memory" is for processes that share host memory."""
MatmulPrecision = Literal["fp32", "tf32", "fp16", "bf16", "fp8"]
Collective = Literal["all_reduce", "all_gather", "reduce_scatter"]

DriveAccess = Literal["direct_io", "page_cache"]
"""Access to a drive during its measurement: around the page cache, or through it."""

BACKENDS: Mapping[str, str] = {"cpu": "gloo", "cuda": "nccl", "tpu": "tpu_dist"}
"""Backends of process groups, by the device's type in torch."""
RESOURCES: Mapping[str, str] = {"cuda": "GPU", "tpu": "TPU"}
"""Ray's resource of which each rank takes one, by the device's type in torch."""

Architecture = Literal[
    "volta", "turing", "ampere", "ada", "hopper", "blackwell", "cdna", "cpu", "other", "tpu"
]
"""Devices of one architecture reach similar shares of their peaks."""

Text = Annotated[str, Field(min_length=1, max_length=200, strict=True)]
Whole = Annotated[int, Field(ge=1, strict=True)]
Quantity = Annotated[float, Field(gt=0, strict=True)]
Peak = Annotated[float, Field(ge=0, strict=True)]
MatmulPoint = tuple[MatmulPrecision, Whole, Whole, Whole, Quantity]
"""precision, rows, columns, inner dimension, FLOP/s."""
CollectivePoint = tuple[Collective, Whole, Whole, Quantity]
"""collective, ranks, bytes of the whole tensor, seconds."""
_CHECKED = ConfigDict(extra="forbid", allow_inf_nan=False)


@dataclass(frozen=True, slots=True, kw_only=True, config=_CHECKED)
class BlockLaunches:
    """The host's seconds per traced operator of a Transformer block, forward and backward.

    Each is None if it was not measured.
    """

    block_launch_seconds: Quantity | None = None
    """Eager block: seconds per operator."""
    recomputed_launch_seconds: Quantity | None = None
    """Operator repeated by selective recomputation, with the bookkeeping of forward."""
    compiled_launch_seconds: Quantity | None = None
    """Compiled block: seconds per operator."""


@dataclass(frozen=True, slots=True, kw_only=True, config=_CHECKED)
class Device:
    """Performance of one device, and its share of a typical node.

    Peaks are dense, without sparsity, and 0 if the device lacks the precision. Bandwidths are those
    of the data sheet or of a measurement, not what programs reach. Links count one direction.

    Raises:
        ValidationError: On construction, naming every invalid field.
    """

    name: Text
    aliases: tuple[Text, ...] = ()
    architecture: Architecture = "other"
    memory_bytes: Whole
    """Total that the driver reports, which is less than the nominal size."""
    multiprocessors: Whole
    """SMs of NVIDIA, compute units of AMD, TensorCores of a TPU, cores of a CPU."""
    fp32_flops_per_second: Quantity
    """PyTorch's default: without TF32; on AMD, that of the matrix units."""
    tf32_flops_per_second: Peak
    fp16_flops_per_second: Peak
    """Peak with fp32 accumulation."""
    bf16_flops_per_second: Peak
    fp8_flops_per_second: Peak
    bandwidth_bytes_per_second: Quantity
    """Bandwidth of the device's own memory."""
    power_watts: Quantity
    """Default power limit; boards with a lower limit clock lower under load."""
    node_devices: Whole
    """Devices connected by these links: 8 in most servers, 72 in a GB200 NVL72 rack."""
    link_kind: LinkKind
    link_bytes_per_second: Quantity
    """Bandwidth between devices of a node, all links of one device together."""
    network_bytes_per_second: Quantity
    """One device's share of the bandwidth between nodes."""
    pcie_bytes_per_second: Quantity
    """Bandwidth between host and device with pinned memory, over any bus."""
    host_memory_bytes: Whole
    """One device's share, like the following fields."""
    host_bandwidth_bytes_per_second: Quantity
    nvme_read_bytes_per_second: Quantity
    nvme_write_bytes_per_second: Quantity
    drive_access: DriveAccess | None = None
    """Access to the drive while its rates were measured; None if unknown or not measured."""
    launch_seconds: Quantity
    """Time between kernels when eager PyTorch is the bottleneck: of one trivial operator."""
    block_launch_seconds: Quantity | None = None
    """The host's time per operator of a block; see `BlockLaunches`, like the two below."""
    recomputed_launch_seconds: Quantity | None = None
    compiled_launch_seconds: Quantity | None = None
    context_bytes: Annotated[int, Field(ge=0, strict=True)]
    """Memory of a process outside PyTorch's allocator: CUDA context and libraries."""
    price_per_hour: Annotated[float, Field(ge=0, strict=True)] | None = None
    pageable_bytes_per_second: Quantity | None = None
    """Bandwidth between host and device with pageable memory; None if it was not measured."""
    matmul_points: tuple[MatmulPoint, ...] = ()
    """Sustained for a second or more each."""
    matmul_throttles: tuple[Text, ...] = ()
    """Reasons for which the device lowered its clocks while matmuls were measured."""
    collective_points: tuple[CollectivePoint, ...] = ()
    """Measured between processes of one node."""
    measured: Annotated[bool, Field(strict=True)] = False
    estimated: Annotated[bool, Field(strict=True)] = False
    """True if peaks and bandwidth follow from the properties of an unknown GPU."""

    @property
    def kind(self) -> str:
        """The device's type in torch: "cpu", "cuda" or "tpu"."""
        if self.link_kind == "memory":
            return "cpu"
        return "tpu" if self.architecture == "tpu" else "cuda"

    @property
    def node_host_bytes(self) -> int:
        """Memory of a node's host."""
        return self.host_memory_bytes * self.node_devices

    def in_node(self, devices: int | None, host_bytes: int | None) -> Device:
        """Returns the device in a node of that many devices that share `host_bytes` of host memory.

        None keeps the number of devices, and each device's share of host memory.
        """
        count = devices or self.node_devices
        share = self.host_memory_bytes if host_bytes is None else max(host_bytes // count, 1)
        return replace(self, node_devices=count, host_memory_bytes=share)

    def peak_flops_per_second(self, precision: MatmulPrecision) -> float:
        """Returns the dense peak in FLOP/s; 0.0 if the device lacks the precision."""
        return float(getattr(self, f"{precision}_flops_per_second"))

    def with_launches(self, launches: BlockLaunches | None) -> Device:
        """Returns the device with measured launches in place of its own."""
        measured = asdict(launches) if launches else {}
        return replace(self, **{name: value for name, value in measured.items() if value})
