"""A probe that takes seconds, and a possible result."""

from search_spaces.hardware.device import BlockLaunches
from workers.probe.config import ProbeConfig, ProbeResult

TINY = ProbeConfig(
    device_type="cpu",
    ranks=2,
    threads=1,
    shapes=((8, 8, 8), (64, 16, 32), (16, 16, 16)),
    precisions=("fp32", "bf16"),
    point_seconds=0.002,
    matmul_seconds=0.002,
    copy_bytes=2**16,
    collective_bytes=(2**10, 2**14),
    file_bytes=2**23,
    file_seconds=1.0,
    compiles=False,
    timeout_seconds=1200.0,
)

ON_A_GPU = ProbeResult(
    device_name="NVIDIA H100 80GB HBM3",
    memory_bytes=85_000_000_000,
    multiprocessors=132,
    context_bytes=500_000_000,
    power_watts=650.0,
    matmul_points=(("bf16", 8192, 8192, 8192, 7.123456e14), ("fp32", 8192, 8192, 8192, 5e13)),
    matmul_throttles=("power cap",),
    bandwidth_bytes_per_second=3.0e12,
    host_bandwidth_bytes_per_second=9e10,
    pinned_bytes_per_second=(5.5e10, 5.2e10),
    pageable_bytes_per_second=(8e9, 6e9),
    launch_seconds=4e-6,
    block_launches=BlockLaunches(block_launch_seconds=2e-5, compiled_launch_seconds=8e-6),
    collective_points=(("all_reduce", 8, 800, 1e-6), ("all_reduce", 8, 8_000_000_000, 0.04)),
    drive_bytes_per_second=(2e9, 5e9),
)
