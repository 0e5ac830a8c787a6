"""Converts the result of a probe to a device description."""

import dataclasses
import os
from typing import Any, get_args

import psutil

from search_spaces.hardware.catalogue import known_device
from search_spaces.hardware.device import Device, MatmulPrecision
from search_spaces.hardware.names import DeviceError
from workers.probe.config import ProbeConfig, ProbeResult
from workers.probe.rates import bus_bandwidth


def describe(result: ProbeResult, config: ProbeConfig) -> Device:
    """Returns the device with its measured values; the catalogue fills in the rest.

    A device in the catalogue keeps the peaks of its data sheet, next to the measured matmuls. For
    any other device the peaks are the fastest matmuls, and values that need several nodes are
    those of the catalogue's "cpu".

    Args:
        result: Result of rank 0.
        config: Configuration of the probe.
    """
    base, in_catalogue = _base(result)
    values = _measured_values(result, config)
    if not in_catalogue:
        peaks = dict.fromkeys(get_args(MatmulPrecision), 0.0)
        for precision, *_, rate in result.matmul_points:
            peaks[precision] = max(peaks[precision], rate)
        values |= {f"{name}_flops_per_second": _rounded(peak) for name, peak in peaks.items()}
    return dataclasses.replace(base, **values, measured=True)


def _base(result: ProbeResult) -> tuple[Device, bool]:
    if result.device_name == "cpu":
        return known_device("cpu"), False
    try:
        return known_device(result.device_name), True
    except DeviceError:
        blank = known_device("cpu")
        return dataclasses.replace(
            blank, name=result.device_name, aliases=(), architecture="other", link_kind="pcie"
        ), False


def _measured_values(result: ProbeResult, config: ProbeConfig) -> dict[str, Any]:
    is_cpu = config.device_type == "cpu"
    node_devices = max((os.cpu_count() or 1) // config.threads, 1) if is_cpu else config.ranks
    bus = result.pinned_bytes_per_second
    names = {field.name for field in dataclasses.fields(Device)}
    measured = (field.name for field in dataclasses.fields(result) if field.name in names)
    values: dict[str, Any] = {
        **{name: getattr(result, name) for name in measured},
        "node_devices": node_devices,
        "link_bytes_per_second": bus_bandwidth(result.collective_points),
        # between a CPU and its host a transfer is a copy: each byte is read and written once
        "pcie_bytes_per_second": min(bus) if bus else result.bandwidth_bytes_per_second / 2,
        "pageable_bytes_per_second": (
            min(result.pageable_bytes_per_second) if result.pageable_bytes_per_second else None
        ),
        "host_memory_bytes": psutil.virtual_memory().total // node_devices,
        **dataclasses.asdict(result.block_launches),
    }
    if result.drive_bytes_per_second is not None:
        write, read = result.drive_bytes_per_second
        values |= {"nvme_write_bytes_per_second": write, "nvme_read_bytes_per_second": read}
        values["drive_access"] = "direct_io"
    return {name: _rounded(value) for name, value in values.items() if value not in (None, ())}


def _rounded(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_rounded, value))
    # four digits, since repeated runs differ in the third
    return float(f"{value:.4g}") if isinstance(value, float) else value
