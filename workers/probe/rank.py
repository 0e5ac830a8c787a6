"""Runs a probe in one process per rank."""

import contextlib
import datetime
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import torch
import torch.distributed as dist
from pydantic import TypeAdapter
from torch.multiprocessing.spawn import (
    ProcessContext,
    ProcessExitedException,
    ProcessRaisedException,
    spawn,
)

from search_spaces.errors import ClusterError
from search_spaces.specification.sections import TrainSpec
from workers.measure.conditions import ConditionsSampler
from workers.memory.device_runtime import runtime_for
from workers.memory.nvml import nvml_device
from workers.probe import rates
from workers.probe.block import STAND_IN, block_launches
from workers.probe.config import ProbeConfig, ProbeResult

_TRAIN = TrainSpec(global_batch=1, sequence_length=1, precision="bf16")
FINDINGS = TypeAdapter(ProbeResult)
_POLL_SECONDS = 1.0


def measure(rank: int, config: ProbeConfig, drive: Path, exchange: Path) -> None:
    """Measures at the same time as its peers; rank 0 writes its result to `exchange`."""
    torch.set_num_threads(config.threads)
    device = torch.device("cuda", rank) if config.device_type == "cuda" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    with _group(rank, config, exchange):
        result = _measured(config, device, drive)
    if rank == 0:
        (exchange / "findings.json").write_bytes(FINDINGS.dump_json(result))


@contextlib.contextmanager
def _group(rank: int, config: ProbeConfig, exchange: Path) -> Iterator[None]:
    if config.ranks == 1:
        yield
        return
    dist.init_process_group(
        "nccl" if config.device_type == "cuda" else "gloo",
        init_method=(exchange / "store").as_uri(),
        rank=rank,
        world_size=config.ranks,
        timeout=datetime.timedelta(seconds=config.timeout_seconds),
    )
    try:
        yield
    finally:
        dist.destroy_process_group()


def _measured(config: ProbeConfig, device: torch.device, drive: Path) -> ProbeResult:
    # barriers before each kind, so that all ranks measure the same at the same time
    is_cuda = device.type == "cuda"
    host = torch.device("cpu")
    properties = torch.cuda.get_device_properties(device) if is_cuda else None
    context = _context_bytes(device)
    _barrier(config)
    with ConditionsSampler.running(device) as sampler:
        sampler.begin()
        points = rates.matmul_points(config, device)
    _barrier(config)
    bandwidth = rates.copy_bandwidth(config, device)
    host_bandwidth = rates.copy_bandwidth(config, host) if is_cuda else bandwidth
    _barrier(config)
    pinned = rates.transfer_rates(config, device, pinned=True) if is_cuda else None
    pageable = rates.transfer_rates(config, device, pinned=False) if is_cuda else None
    launch = rates.launch_seconds(config, device)
    blocks = block_launches(
        STAND_IN, _TRAIN, device, seconds=config.point_seconds, compiles=config.compiles
    )
    _barrier(config)
    collectives = rates.collective_points(config, device)
    _barrier(config)
    drive_rates = rates.drive_rates(
        drive, file_bytes=config.file_bytes, most_seconds=config.file_seconds
    )
    return ProbeResult(
        device_name=torch.cuda.get_device_name(device) if is_cuda else "cpu",
        memory_bytes=_memory_bytes(device, config),
        multiprocessors=properties.multi_processor_count if properties else config.threads,
        context_bytes=context,
        power_watts=_power_watts(device),
        matmul_points=points,
        matmul_throttles=sampler.read().throttled,
        bandwidth_bytes_per_second=bandwidth,
        host_bandwidth_bytes_per_second=host_bandwidth,
        pinned_bytes_per_second=pinned,
        pageable_bytes_per_second=pageable,
        launch_seconds=launch,
        block_launches=blocks,
        collective_points=collectives,
        drive_bytes_per_second=drive_rates,
    )


def _barrier(config: ProbeConfig) -> None:
    if config.ranks > 1:
        dist.barrier()


def _memory_bytes(device: torch.device, config: ProbeConfig) -> int:
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    cores = psutil.cpu_count() or 1
    total: int = psutil.virtual_memory().total
    return total * config.threads // max(cores, config.threads)


def _context_bytes(device: torch.device) -> int:
    """Device memory outside PyTorch's allocator, of all processes; 0 on a CPU.

    Excludes NCCL's buffers, which come with the first collective.
    """
    torch.ones(8, 8, device=device).mm(torch.ones(8, 8, device=device))  # loads cuBLAS
    runtime = runtime_for(device)
    runtime.give_back()
    return runtime.memory().outside_bytes


def _power_watts(device: torch.device) -> float | None:
    """Enforced power limit in watts; None if it is unknown."""
    with nvml_device(device) as gpu:
        if gpu is None:
            return None
        try:
            return float(gpu.library.nvmlDeviceGetEnforcedPowerLimit(gpu.handle)) / 1000
        except gpu.library.NVMLError:
            return None


def probe_ranks(config: ProbeConfig, *, drive: Path) -> ProbeResult:
    """Measures in one process per rank; no process outlives the call.

    Args:
        config: Configuration of the probe.
        drive: A folder on the drive to measure; a file is written there and deleted.

    Raises:
        ClusterError: If the folder cannot be used, a rank fails or the probe times out.
    """
    if not drive.is_dir():
        raise ClusterError(f"{drive} is not a folder; name a folder on the drive to measure")
    with tempfile.TemporaryDirectory(prefix="plimsoll-probe-") as name:
        exchange = Path(name)
        with _spawned(config, drive.absolute(), exchange) as ranks:
            _join(ranks, config.timeout_seconds)
        return FINDINGS.validate_json((exchange / "findings.json").read_bytes())


@contextlib.contextmanager
def _spawned(config: ProbeConfig, drive: Path, exchange: Path) -> Iterator[ProcessContext]:
    ranks: ProcessContext = spawn(
        measure, args=(config, drive, exchange), nprocs=config.ranks, join=False, daemon=True
    )
    try:
        yield ranks
    finally:
        for process in ranks.processes:
            process.kill()  # does nothing if it has ended
            process.join()


def _join(ranks: ProcessContext, timeout_seconds: float) -> None:
    deadline = time.monotonic() + timeout_seconds
    try:
        while not ranks.join(timeout=_POLL_SECONDS):
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"the probe did not finish within {timeout_seconds:.0f} s;"
                    " run it again when the machine is idle"
                )
    except ProcessRaisedException as error:
        cause = str(error).strip().splitlines()[-1]
        raise ClusterError(f"rank {error.error_index} of the probe failed: {cause}") from error
    except ProcessExitedException as error:
        raise ClusterError(f"the probe failed: {error}") from error
