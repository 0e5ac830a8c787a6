"""Configuration of a probe (sizes and times), and its result."""

import os
from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import TypeAdapter

from search_spaces.hardware.device import (
    BlockLaunches,
    CollectivePoint,
    MatmulPoint,
    MatmulPrecision,
)
from search_spaces.safety.files import packaged_table

Shape = tuple[int, int, int]
"""Rows, columns and inner dimension of a matmul."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeConfig:
    """Sizes and times of one probe.

    All ranks measure at the same time, as they train at the same time, so each gets its part of
    shared resources. A point is repeated for `point_seconds`, and its fastest repeat counts.
    Matmuls run for `matmul_seconds` each, and their mean counts, as they are what heats a device.
    Shapes are measured in order of size. If one call takes longer than `matmul_seconds`, the larger
    ones are skipped.
    """

    device_type: Literal["cpu", "cuda"]
    ranks: int
    threads: int  # of each rank
    shapes: tuple[Shape, ...]
    precisions: tuple[MatmulPrecision, ...]
    point_seconds: float = 0.2
    matmul_seconds: float = 1.0
    copy_bytes: int
    collective_bytes: tuple[int, ...]
    file_bytes: int
    file_seconds: float  # limit for writing, and for reading
    compiles: bool = True  # measure a compiled block too, whose compilation takes half a minute
    timeout_seconds: float = 300.0  # of the whole probe


def default_config() -> ProbeConfig:
    """Returns the configuration for this machine: all CUDA devices, or two ranks of one core."""
    devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
    cores = os.cpu_count() or 1
    ranks, threads = (devices, max(cores // devices, 1)) if devices else (2, 1)
    table = packaged_table(__package__, "sizes.yaml")["cuda" if devices else "cpu"]
    content = table | {"ranks": ranks, "threads": threads}
    return TypeAdapter(ProbeConfig).validate_python(content)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """Rates that one rank reached while its peers measured the same.

    Bandwidths of copies count bytes read plus bytes written. None stands for a feature that the
    device does not have, such as a bus between a CPU and its host.
    """

    device_name: str
    memory_bytes: int
    multiprocessors: int
    context_bytes: int
    power_watts: float | None
    matmul_points: tuple[MatmulPoint, ...]
    matmul_throttles: tuple[str, ...]  # reasons for lowered clocks meanwhile
    bandwidth_bytes_per_second: float
    host_bandwidth_bytes_per_second: float
    pinned_bytes_per_second: tuple[float, float] | None  # to the device, and back
    pageable_bytes_per_second: tuple[float, float] | None
    launch_seconds: float
    block_launches: BlockLaunches
    collective_points: tuple[CollectivePoint, ...]
    drive_bytes_per_second: tuple[float, float] | None  # written and read around the page cache
