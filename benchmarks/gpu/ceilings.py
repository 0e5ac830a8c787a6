"""Ceilings of the GPU: matmuls by shape in bf16, copies, the bus to the host, launches.

Measured as `plimsoll doctor --probe` does, with the shapes of the models that all parts train, and
written as a device file, `device.yaml`, from which all other parts forecast and on which they
quote their figures.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.gpu.task import Figures, Task
from search_spaces.hardware.catalogue import known_device, load_device_file
from search_spaces.hardware.device import Device, MatmulPoint
from search_spaces.hardware.files import device_to_yaml
from search_spaces.hardware.names import DeviceError
from workers.probe.config import MIB, ProbeConfig, ProbeResult, Shape, default_config
from workers.probe.device import describe
from workers.probe.rank import probe_ranks

FILE = "device.yaml"
_TOKENS = 8192  # of a micro-batch
_LAYERS = (  # columns and inner dimension of what the models multiply most
    (1600, 1600), (4800, 1600), (6400, 1600), (1600, 6400), (50257, 1600),
    (2048, 2048), (8192, 2048), (2048, 8192), (128256, 2048),
    (3072, 3072), (8192, 3072), (3072, 8192), (128256, 3072),
)  # fmt: skip


def effort_for(task: Task) -> ProbeConfig:
    """Returns what the probe measures on one rank: the shapes of all models and the usual ones."""
    if task.tiny:
        return dataclasses.replace(
            default_config(),
            ranks=1,
            threads=1,
            shapes=((64, 64, 64), (128, 64, 64), (128, 256, 64)),
            point_seconds=0.01,
            matmul_seconds=0.01,
            copy_bytes=4 * MIB,
            file_bytes=MIB,
            file_seconds=0.5,
            adam_elements=100_000,
        )
    usual = default_config()
    return dataclasses.replace(
        usual,
        ranks=1,
        shapes=tuple(dict.fromkeys((*usual.shapes, *shapes_of_models()))),
        precisions=("fp32", "bf16", "fp16"),  # those of plans
        point_seconds=usual.point_seconds / 2,
        timeout_seconds=480.0,
    )


def shapes_of_models() -> Iterator[Shape]:
    """Rows, columns and inner dimension of the models' matmuls."""
    return ((_TOKENS, *layer) for layer in _LAYERS)


def measure(task: Task) -> Figures:
    """Probes the device, and writes its file."""
    effort = effort_for(task)
    with TemporaryDirectory(dir=task.out) as drive:
        findings = probe_ranks(effort, drive=Path(drive))
    device = describe(findings, effort, when=time.strftime("%Y-%m-%d"))
    (task.out / FILE).write_text(device_to_yaml(device), "utf-8")
    return found_in(device, findings, effort)


def found_in(device: Device, findings: ProbeResult, effort: ProbeConfig) -> Figures:
    """The rates of one probe."""
    rows = [_row(point) for point in device.matmul_points]
    rows.sort(key=lambda row: -row["tflops_per_second"])
    return {
        "name": device.name,
        "memory_bytes": device.memory_bytes,
        "matmul_flops_per_second": {name: findings.matmul_peak(name) for name in effort.precisions},
        "matmul_throttles": findings.matmul_throttles,
        "data_sheet_bf16_flops_per_second": data_sheet(device.name),
        "copy_bytes_per_second": findings.bandwidth_bytes_per_second,
        "host_copy_bytes_per_second": findings.host_bandwidth_bytes_per_second,
        "to_device_and_back_bytes_per_second": {
            "pinned": findings.pinned_bytes_per_second,
            "pageable": findings.pageable_bytes_per_second,
        },
        "launch_seconds": findings.launch_seconds,
        "context_bytes": findings.context_bytes,
        "power_watts": findings.power_watts,
        "rows": rows,
    }


def _row(point: MatmulPoint) -> dict[str, Any]:
    precision, rows, columns, inner, rate = point
    return {
        "precision": precision,
        "rows": rows,
        "columns": columns,
        "inner": inner,
        "tflops_per_second": rate / 1e12,
        "seconds": 2 * rows * columns * inner / rate,
    }


def data_sheet(name: str) -> float | None:
    """The dense bf16 peak that the maker states, in FLOP/s; None of a device that nobody knows."""
    try:
        return known_device(name).bf16_flops_per_second if name != "cpu" else None
    except DeviceError:
        return None


def device_of(out: Path, name: str) -> Device:
    """Returns the device of forecasts: the folder's measured file, else the catalogue's.

    Raises:
        DeviceError: If there is no file and nobody knows the device.
        SpecError: If the file has faults.
    """
    file = out / FILE
    if file.exists():
        return load_device_file(file)[0]
    return known_device(name)
