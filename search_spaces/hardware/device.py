"""A device and the usual node around it, as one frozen value."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

LinkKind = Literal["nvlink", "xgmi", "pcie", "memory"]
"""What joins the devices of a node; "memory" stands for processes that share the host's."""
MatmulPrecision = Literal["fp32", "tf32", "fp16", "bf16", "fp8"]
Collective = Literal["all_reduce", "all_gather", "reduce_scatter"]

Architecture = Literal[
    "volta", "turing", "ampere", "ada", "hopper", "blackwell", "cdna", "cpu", "other"
]
"""Devices of one architecture reach like shares of their peaks."""

Text = Annotated[str, Field(min_length=1, max_length=200, strict=True)]
Whole = Annotated[int, Field(ge=1, strict=True)]
Quantity = Annotated[float, Field(gt=0, strict=True)]
Peak = Annotated[float, Field(ge=0, strict=True)]
MatmulPoint = tuple[MatmulPrecision, Whole, Whole, Whole, Quantity]
"""precision, rows, columns, inner dimension, FLOP/s."""
CollectivePoint = tuple[Collective, Whole, Whole, Quantity]
"""collective, ranks, bytes of the whole tensor, seconds."""
Source = tuple[Text, tuple[Text, ...]]
"""where numbers come from, and the names of the fields that hold them."""


@dataclass(
    frozen=True,
    slots=True,
    kw_only=True,
    config=ConfigDict(extra="forbid", allow_inf_nan=False),
)
class Device:
    """What one device can do, and its share of the usual node.

    Peaks are dense, without sparsity, 0 where the device lacks the precision. Bandwidths are what
    the maker states or what was measured, not what a program reaches. Links count one direction.

    Raises:
        ValidationError: On construction, naming every field that is wrong.
    """

    name: Text
    aliases: tuple[Text, ...] = ()
    architecture: Architecture = "other"
    memory_bytes: Whole
    """What the driver reports as total, which is less than what the maker prints on it."""
    multiprocessors: Whole
    """SMs of NVIDIA, compute units of AMD, cores of a CPU."""
    fp32_flops_per_second: Quantity
    """As PyTorch multiplies by default: no TF32; AMD's matrix units have fp32."""
    tf32_flops_per_second: Peak
    fp16_flops_per_second: Peak
    """With sums in fp32."""
    bf16_flops_per_second: Peak
    fp8_flops_per_second: Peak
    bandwidth_bytes_per_second: Quantity
    """Of the device's own memory."""
    power_watts: Quantity
    """The limit at which it ships; boards below the usual limit clock lower under load."""
    node_devices: Whole
    """Devices that the links join: 8 in most servers, 72 in a GB200 NVL72 rack."""
    link_kind: LinkKind
    link_bytes_per_second: Quantity
    """Between devices of a node, all links of one device together."""
    network_bytes_per_second: Quantity
    """Between nodes, one device's share."""
    pcie_bytes_per_second: Quantity
    """Between host and device with pinned memory, by whatever bus joins them."""
    host_memory_bytes: Whole
    """One device's share, as are the following."""
    host_bandwidth_bytes_per_second: Quantity
    nvme_read_bytes_per_second: Quantity
    nvme_write_bytes_per_second: Quantity
    launch_seconds: Quantity
    """From one kernel to the next where eager PyTorch is what takes longest."""
    context_bytes: Annotated[int, Field(ge=0, strict=True)]
    """What a process takes outside of PyTorch's allocator: CUDA context and libraries."""
    price_per_hour: Annotated[float, Field(ge=0, strict=True)] | None = None
    pageable_bytes_per_second: Quantity | None = None
    """Between host and device with memory that is not pinned; None where nobody measured it."""
    cpu_adam_elements_per_second: Quantity | None = None
    """Parameters that Adam updates on the host, one device's share; None as above."""
    matmul_points: tuple[MatmulPoint, ...] = ()
    collective_points: tuple[CollectivePoint, ...] = ()
    """Among processes of one node."""
    measured: Annotated[bool, Field(strict=True)] = False
    sources: tuple[Source, ...] = ()

    def peak_flops_per_second(self, precision: MatmulPrecision) -> float:
        """The dense peak; 0.0 where the device lacks the precision."""
        return {
            "fp32": self.fp32_flops_per_second,
            "tf32": self.tf32_flops_per_second,
            "fp16": self.fp16_flops_per_second,
            "bf16": self.bf16_flops_per_second,
            "fp8": self.fp8_flops_per_second,
        }[precision]

    def source_of(self, field: str) -> str | None:
        """Where a field's value comes from; None where nobody said."""
        for source, fields in self.sources:
            if field in fields:
                return source
        return None
