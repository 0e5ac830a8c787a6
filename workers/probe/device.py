"""From findings to a device, as users describe theirs."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import psutil

from search_spaces.hardware import Device, DeviceError, known_device
from search_spaces.hardware.device import MatmulPrecision
from workers.probe.config import ProbeConfig, ProbeResult
from workers.probe.rates import bus_bandwidth

_PRECISIONS: tuple[MatmulPrecision, ...] = ("fp32", "tf32", "fp16", "bf16")


def describe(findings: ProbeResult, effort: ProbeConfig, *, when: str) -> Device:
    """The device with what was measured; the rest is the catalogue's.

    Peaks of a device that the catalogue knows stay the data sheet's, beside which the measured
    matmuls stand. Of one that it does not know they are the best of the matmuls, and what only
    shows among several nodes is that of the catalogue's "cpu".

    Args:
        findings: Of the first rank.
        effort: That they were found with.
        when: The day, for the sources.
    """
    base, known = _base(findings)
    values = _measured(findings, effort)
    if not known:
        values |= {
            f"{name}_flops_per_second": _rounded(findings.matmul_peak(name)) for name in _PRECISIONS
        }
        values["fp8_flops_per_second"] = 0.0
    source = f"plimsoll doctor --probe on {when}"
    drive = " with direct I/O" if findings.past_page_cache else " through the page cache"
    of_drive = ("nvme_read_bytes_per_second", "nvme_write_bytes_per_second")
    kept = tuple(
        (text, left)
        for text, fields in base.sources
        if (left := tuple(field for field in fields if field not in values))
    )
    told = tuple(name for name in values if name not in (*of_drive, "name", "aliases"))
    sources = (*kept, (source, told), (f"{source}{drive}", of_drive))
    return dataclasses.replace(base, **values, measured=True, sources=sources)


def _base(findings: ProbeResult) -> tuple[Device, bool]:
    if findings.device_name == "cpu":
        return known_device("cpu"), False
    try:
        return known_device(findings.device_name), True
    except DeviceError:
        blank = known_device("cpu")
        return dataclasses.replace(
            blank,
            name=findings.device_name,
            aliases=(),
            architecture="other",
            link_kind="pcie",
        ), False


def _measured(findings: ProbeResult, effort: ProbeConfig) -> dict[str, Any]:
    cpu = effort.device_type == "cpu"
    node_devices = max((os.cpu_count() or 1) // effort.threads, 1) if cpu else effort.ranks
    bus = findings.pinned_bytes_per_second
    values: dict[str, Any] = {
        "memory_bytes": findings.memory_bytes,
        "multiprocessors": findings.multiprocessors,
        "bandwidth_bytes_per_second": findings.bandwidth_bytes_per_second,
        "power_watts": findings.power_watts,
        "node_devices": node_devices,
        "link_bytes_per_second": bus_bandwidth(findings.collective_points),
        # what moves between a CPU and its host is copied: read once and written once
        "pcie_bytes_per_second": min(bus) if bus else findings.bandwidth_bytes_per_second / 2,
        "pageable_bytes_per_second": (
            min(findings.pageable_bytes_per_second) if findings.pageable_bytes_per_second else None
        ),
        "host_memory_bytes": psutil.virtual_memory().total // node_devices,
        "host_bandwidth_bytes_per_second": findings.host_bandwidth_bytes_per_second,
        "nvme_read_bytes_per_second": findings.nvme_read_bytes_per_second,
        "nvme_write_bytes_per_second": findings.nvme_write_bytes_per_second,
        "launch_seconds": findings.launch_seconds,
        "context_bytes": findings.context_bytes,
        "cpu_adam_elements_per_second": findings.cpu_adam_elements_per_second,
        "matmul_points": findings.matmul_points,
        "collective_points": findings.collective_points,
    }
    return {name: _rounded(value) for name, value in values.items() if value not in (None, ())}


def _rounded(value: Any) -> Any:
    """Four digits of what was measured: the next run differs in the third."""
    if isinstance(value, tuple):
        return tuple(map(_rounded, value))
    return float(f"{value:.4g}") if isinstance(value, float) else value
