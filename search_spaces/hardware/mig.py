"""Instances of GPUs that are divided by MIG, by the profiles that NVIDIA lists."""

from collections.abc import Iterator
from dataclasses import replace

from search_spaces.hardware.device import Device
from search_spaces.safety.files import packaged_table

_GIB = 2**30
_SLICES = 8  # of a board's memory; an instance has whole slices, with their share of the bandwidth
_BY_SMS = (
    *("fp32_flops_per_second", "tf32_flops_per_second", "fp16_flops_per_second"),
    *("bf16_flops_per_second", "fp8_flops_per_second", "power_watts"),
)
_BY_SLICES = (
    *("bandwidth_bytes_per_second", "network_bytes_per_second", "pcie_bytes_per_second"),
    *("host_memory_bytes", "host_bandwidth_bytes_per_second"),
    *("nvme_read_bytes_per_second", "nvme_write_bytes_per_second"),
)


def instances_of(board: Device) -> Iterator[Device]:
    """Yields the instances that MIG divides a board into; none if it cannot be divided.

    Peaks and power are the board's by SMs, bandwidths and the share of the host are the board's by
    memory slices. Instances reach each other through the host alone: MIG has neither NVLink nor
    peer access.

    Source:
        NVIDIA, Multi-Instance GPU user guide: partitioning, supported profiles.
    """
    profiles = packaged_table("search_spaces", "devices/mig.yaml")
    for profile, (sms, gib) in profiles.get(board.name, {}).items():
        slices = round(_SLICES * gib * _GIB / board.memory_bytes) / _SLICES
        values = {name: getattr(board, name) * sms / board.multiprocessors for name in _BY_SMS}
        values |= {name: getattr(board, name) * slices for name in _BY_SLICES}
        values["host_memory_bytes"] = int(values["host_memory_bytes"])
        names = [f"{board_name} MIG {profile}" for board_name in (board.name, *board.aliases)]
        if profile.startswith("1g"):  # with media extensions, which training does not use
            names += [f"{name}+me" for name in names]
        values |= {
            "name": names[0],
            "aliases": tuple(names[1:]),
            "memory_bytes": int(gib * _GIB),
            "multiprocessors": sms,
            "node_devices": 1,
            "link_kind": "pcie",
            "link_bytes_per_second": values["pcie_bytes_per_second"],
        }
        yield replace(board, **values)
