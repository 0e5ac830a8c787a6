"""Configuration of a probe (sizes and times), and its result."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal

import torch

from search_spaces.hardware.device import (
    BlockLaunches,
    CollectivePoint,
    MatmulPoint,
    MatmulPrecision,
)

KIB, MIB = 2**10, 2**20
Shape = tuple[int, int, int]
"""Rows, columns and inner dimension of a matmul."""

_TALL: tuple[Shape, ...] = ((2048, 512, 512), (4096, 256, 1024), (512, 4096, 512))
_TALL_CUDA: tuple[Shape, ...] = (
    (16384, 1024, 1024),
    (8192, 4096, 1024),
    (8192, 1024, 4096),
    (4096, 14336, 4096),
    (2048, 32000, 4096),
    (256, 4096, 4096),
)


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
    adam_elements: int
    compiles: bool = True  # measure a compiled block too, whose compilation takes half a minute
    timeout_seconds: float = 300.0  # of the whole probe


def default_config() -> ProbeConfig:
    """Returns the configuration for this machine: all CUDA devices, or two ranks of one core."""
    devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
    cores = os.cpu_count() or 1
    if not devices:
        return ProbeConfig(
            device_type="cpu",
            ranks=2,
            threads=1,  # default of `cluster.cpus_per_worker`
            shapes=(*((side, side, side) for side in (64, 128, 256, 512, 1024, 1536)), *_TALL),
            precisions=("fp32", "bf16", "fp16"),
            copy_bytes=128 * MIB,
            collective_bytes=(64 * KIB, MIB, 8 * MIB, 64 * MIB),
            file_bytes=256 * MIB,
            file_seconds=4.0,
            adam_elements=16_000_000,
        )
    squares = ((side, side, side) for side in (256, 512, 1024, 2048, 4096, 8192))
    return ProbeConfig(
        device_type="cuda",
        ranks=devices,
        threads=max(cores // devices, 1),
        shapes=(*squares, *_TALL_CUDA),
        precisions=("fp32", "tf32", "bf16", "fp16"),
        copy_bytes=1024 * MIB,
        collective_bytes=(64 * KIB, MIB, 16 * MIB, 64 * MIB, 256 * MIB),
        file_bytes=1024 * MIB,
        file_seconds=5.0,
        adam_elements=32_000_000,
    )


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
    cpu_adam_elements_per_second: float

    def matmul_peak(self, precision: str) -> float:
        """Returns the highest FLOP/s of any shape; 0.0 if the precision was not measured."""
        return max((rate for name, *_, rate in self.matmul_points if name == precision), default=0)
