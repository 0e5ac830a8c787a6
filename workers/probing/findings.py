"""What one rank measured."""

from __future__ import annotations

from dataclasses import dataclass

from search_spaces.hardware.device import CollectivePoint, MatmulPoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """Rates that one rank reached while its peers measured the same.

    Bandwidths of copies count bytes read and bytes written. None stands for what the device does
    not have, such as a bus between a CPU and itself.
    """

    device_name: str
    memory_bytes: int
    multiprocessors: int
    context_bytes: int
    power_watts: float | None
    matmul_points: tuple[MatmulPoint, ...]
    bandwidth_bytes_per_second: float
    host_bandwidth_bytes_per_second: float
    pinned_bytes_per_second: tuple[float, float] | None  # to the device, and back
    pageable_bytes_per_second: tuple[float, float] | None
    launch_seconds: float
    collective_points: tuple[CollectivePoint, ...]
    nvme_write_bytes_per_second: float
    nvme_read_bytes_per_second: float
    past_page_cache: bool  # whether files were read and written around the page cache
    cpu_adam_elements_per_second: float

    def matmul_peak(self, precision: str) -> float:
        """The most FLOP/s of any shape; 0.0 if the precision was not measured."""
        return max(
            (rate for found, *_, rate in self.matmul_points if found == precision), default=0
        )
