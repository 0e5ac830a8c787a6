"""What was measured of a device, in the words of a table."""

from __future__ import annotations

from collections.abc import Iterator

from search_spaces.hardware import Device

_UNITS = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def device_rows(device: Device) -> Iterator[tuple[str, str, str]]:
    """Rows of what, how much and at which size; the fastest point stands for its kind."""
    for precision in dict.fromkeys(point[0] for point in device.matmul_points):
        points = [point for point in device.matmul_points if point[0] == precision]
        _, rows, columns, inner, rate = max(points, key=lambda point: point[-1])
        yield f"matmul {precision}", f"{_scaled(rate)}FLOP/s", f"{rows} x {inner} x {columns}"
    yield "memory, copied", _rate(device.bandwidth_bytes_per_second), "read and written"
    if device.link_kind != "memory":
        yield "host and device", _rate(device.pcie_bytes_per_second), "pinned, the slower way"
    if device.pageable_bytes_per_second is not None:
        yield "", _rate(device.pageable_bytes_per_second), "not pinned"
    for collective in dict.fromkeys(point[0] for point in device.collective_points):
        points_of = [point for point in device.collective_points if point[0] == collective]
        _, ranks, size, seconds = max(points_of, key=lambda point: point[2])
        words = collective.replace("_", "-")
        yield words, _rate(size / seconds), f"{size / 2**20:.0f} MiB, {ranks} ranks"
    yield "drive, read", _rate(device.nvme_read_bytes_per_second), _way(device)
    yield "drive, written", _rate(device.nvme_write_bytes_per_second), _way(device)
    yield "launch", f"{device.launch_seconds * 1e6:.1f} µs", "from one operator to the next"
    if device.cpu_adam_elements_per_second is not None:
        adam = f"{_scaled(device.cpu_adam_elements_per_second)}elements/s"
        yield "Adam on the host", adam, "fp32, each rank"


def _way(device: Device) -> str:
    source = device.source_of("nvme_read_bytes_per_second") or ""
    return source.partition(" with ")[2] or source.partition(" through ")[2]


def _rate(bytes_per_second: float) -> str:
    return f"{_scaled(bytes_per_second)}B/s"


def _scaled(value: float) -> str:
    """With a decimal prefix: 1.35e12 is "1.35 T"."""
    for factor, prefix in _UNITS:
        if value >= factor:
            return f"{value / factor:.3g} {prefix}"
    return f"{value:.3g} "
