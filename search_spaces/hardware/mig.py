"""Instances of GPUs that are divided by MIG, by the profiles that NVIDIA lists."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from search_spaces.hardware.device import Device

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
_Profiles = Mapping[str, tuple[int, float]]  # SMs and GiB of memory
_A100_40: _Profiles = {
    "1g.5gb": (14, 4.75), "1g.10gb": (14, 9.62), "2g.10gb": (28, 9.62),
    "3g.20gb": (42, 19.5), "4g.20gb": (56, 19.5), "7g.40gb": (98, 39.25),
}  # fmt: skip
_A100_80: _Profiles = {
    "1g.10gb": (14, 9.5), "1g.20gb": (14, 19.5), "2g.20gb": (28, 19.5),
    "3g.40gb": (42, 39.25), "4g.40gb": (56, 39.25), "7g.80gb": (98, 78.75),
}  # fmt: skip
_PROFILES: Mapping[str, tuple[str, _Profiles]] = {
    "A100-40": ("A100-SXM4-40GB", _A100_40),
    "A100-40-PCIe": ("A100-SXM4-40GB", _A100_40),
    "A100-80": ("A100-SXM4-80GB", _A100_80),
    "A100-80-PCIe": ("A100-SXM4-80GB", _A100_80),
    "H100-80-SXM": ("H100 80GB HBM3", {
        "1g.10gb": (16, 9.75), "1g.20gb": (26, 19.62), "2g.20gb": (32, 19.62),
        "3g.40gb": (60, 39.38), "4g.40gb": (64, 39.38), "7g.80gb": (132, 79.12),
    }),
    "H200": ("H200 (mig-parted issue 120, 2024)", {
        "1g.18gb": (16, 16.0), "1g.35gb": (26, 32.25), "2g.35gb": (32, 32.25),
        "3g.71gb": (60, 69.5), "4g.71gb": (64, 69.5), "7g.141gb": (132, 139.5),
    }),
    # SMs of 3g and 4g are an estimate: four slices of 18, of which 3g leaves two idle as on H100
    "B200": ("B200 (gpu-operator pull request 1351, 2025), SMs of 3g and 4g estimated", {
        "1g.23gb": (18, 20.5), "1g.45gb": (30, 44.25), "2g.45gb": (36, 44.25),
        "3g.90gb": (70, 89.0), "4g.90gb": (72, 89.0), "7g.180gb": (148, 178.0),
    }),
}  # fmt: skip


def instances_of(board: Device) -> Iterator[Device]:
    """Yields the instances that MIG divides a board into; none if it cannot be divided.

    Peaks and power are the board's by SMs, bandwidths and the share of the host are the board's by
    memory slices. Instances reach each other through the host alone: MIG has neither NVLink nor
    peer access.

    Source:
        NVIDIA, Multi-Instance GPU user guide: partitioning, supported profiles; `nvidia-smi mig
        -lgip` on each board.
    """
    listed, profiles = _PROFILES.get(board.name, ("", {}))
    for profile, (sms, gib) in profiles.items():
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
        new = (
            (f"nvidia-smi mig -lgip on {listed}", ("memory_bytes", "multiprocessors")),
            (f"{board.name}, by the SMs", _BY_SMS),
            (f"{board.name}, by memory slices", (*_BY_SLICES, "link_bytes_per_second")),
            ("NVIDIA, Multi-Instance GPU user guide", ("node_devices", "link_kind")),
        )
        kept = (
            (source, tuple(field for field in fields if field not in values))
            for source, fields in board.sources
        )
        sources = (*(pair for pair in kept if pair[1]), *new)
        yield replace(board, **values, sources=sources)
