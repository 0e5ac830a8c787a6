"""What each rank of a probe does, in a process of its own."""

from __future__ import annotations

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
from workers.memory.nvml import nvml_device
from workers.probe.config import ProbeConfig, ProbeResult
from workers.probe.rates import (
    adam_rate,
    collective_points,
    copy_bandwidth,
    launch_seconds,
    matmul_points,
    transfer_rates,
)
from workers.probe.storage import DriveRates, drive_rates

FINDINGS = TypeAdapter(ProbeResult)
_POLL_SECONDS = 1.0


def measure(rank: int, effort: ProbeConfig, drive: Path, exchange: Path) -> None:
    """Measures beside its peers; the first rank writes its findings to `exchange`."""
    torch.set_num_threads(effort.threads)
    device = torch.device("cuda", rank) if effort.device_type == "cuda" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    with _group(rank, effort, exchange):
        findings = _measured(effort, device, drive)
    if rank == 0:
        (exchange / "findings.json").write_bytes(FINDINGS.dump_json(findings))


@contextlib.contextmanager
def _group(rank: int, effort: ProbeConfig, exchange: Path) -> Iterator[None]:
    if effort.ranks == 1:
        yield
        return
    dist.init_process_group(
        "nccl" if effort.device_type == "cuda" else "gloo",
        init_method=(exchange / "store").as_uri(),
        rank=rank,
        world_size=effort.ranks,
        timeout=datetime.timedelta(seconds=effort.timeout_seconds),
    )
    try:
        yield
    finally:
        dist.destroy_process_group()


def _measured(effort: ProbeConfig, device: torch.device, drive: Path) -> ProbeResult:
    """Each kind together with the peers; those who are ahead wait."""
    cuda = device.type == "cuda"
    host = torch.device("cpu")
    context = _context_bytes(device)
    _meet(effort)
    points = matmul_points(effort, device)
    _meet(effort)
    bandwidth = copy_bandwidth(effort, device)
    host_bandwidth = copy_bandwidth(effort, host) if cuda else bandwidth
    _meet(effort)
    pinned = transfer_rates(effort, device, pinned=True) if cuda else None
    pageable = transfer_rates(effort, device, pinned=False) if cuda else None
    launch = launch_seconds(effort, device)
    _meet(effort)
    adam = adam_rate(effort)
    collectives = collective_points(effort, device)
    rates = _drive(effort, drive)
    return ProbeResult(
        device_name=torch.cuda.get_device_name(device) if cuda else "cpu",
        memory_bytes=_memory_bytes(device, effort),
        multiprocessors=_multiprocessors(device, effort),
        context_bytes=context,
        power_watts=_power_watts(device),
        matmul_points=points,
        bandwidth_bytes_per_second=bandwidth,
        host_bandwidth_bytes_per_second=host_bandwidth,
        pinned_bytes_per_second=pinned,
        pageable_bytes_per_second=pageable,
        launch_seconds=launch,
        collective_points=collectives,
        nvme_write_bytes_per_second=rates.write_bytes_per_second,
        nvme_read_bytes_per_second=rates.read_bytes_per_second,
        past_page_cache=rates.past_page_cache,
        cpu_adam_elements_per_second=adam,
    )


def _drive(effort: ProbeConfig, drive: Path) -> DriveRates:
    _meet(effort)
    return drive_rates(drive, file_bytes=effort.file_bytes, most_seconds=effort.file_seconds)


def _meet(effort: ProbeConfig) -> None:
    if effort.ranks > 1:
        dist.barrier()


def _memory_bytes(device: torch.device, effort: ProbeConfig) -> int:
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    cores = psutil.cpu_count() or 1
    total: int = psutil.virtual_memory().total
    return total * effort.threads // max(cores, effort.threads)


def _multiprocessors(device: torch.device, effort: ProbeConfig) -> int:
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).multi_processor_count
    return effort.threads


def _context_bytes(device: torch.device) -> int:
    """What the device holds beside PyTorch's tensors, of whatever process; 0 on a CPU.

    NCCL's buffers are left out: they come with the first collective.
    """
    if device.type != "cuda":
        return 0
    torch.ones(8, 8, device=device).mm(torch.ones(8, 8, device=device))  # loads cuBLAS
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    return max(total - free - torch.cuda.memory_reserved(device), 0)


def _power_watts(device: torch.device) -> float | None:
    """The limit in force; None where nobody tells."""
    with nvml_device(device) as gpu:
        if gpu is None:
            return None
        try:
            return float(gpu.library.nvmlDeviceGetEnforcedPowerLimit(gpu.handle)) / 1000
        except gpu.library.NVMLError:
            return None


def probe_ranks(effort: ProbeConfig, *, drive: Path) -> ProbeResult:
    """Measures with real processes, one for each rank; none of them outlives the call.

    Args:
        effort: What is measured, and how long at most.
        drive: A folder on the drive whose speed counts; a file is written there and deleted.

    Raises:
        ClusterError: If the folder cannot be used, a rank fails or time runs out.
    """
    if not drive.is_dir():
        raise ClusterError(f"{drive} is no folder; name one on the drive to be measured")
    with tempfile.TemporaryDirectory(prefix="plimsoll-probe-") as name:
        exchange = Path(name)
        with _spawned(effort, drive.absolute(), exchange) as ranks:
            _join(ranks, effort.timeout_seconds)
        return FINDINGS.validate_json((exchange / "findings.json").read_bytes())


@contextlib.contextmanager
def _spawned(effort: ProbeConfig, drive: Path, exchange: Path) -> Iterator[ProcessContext]:
    ranks: ProcessContext = spawn(
        measure, args=(effort, drive, exchange), nprocs=effort.ranks, join=False, daemon=True
    )
    try:
        yield ranks
    finally:
        for process in ranks.processes:
            process.kill()  # does nothing to one that has ended
            process.join()


def _join(ranks: ProcessContext, timeout_seconds: float) -> None:
    deadline = time.monotonic() + timeout_seconds
    try:
        while not ranks.join(timeout=_POLL_SECONDS):
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"the probe was not done after {timeout_seconds:.0f} s;"
                    " run it again when nothing else keeps the machine busy"
                )
    except ProcessRaisedException as error:
        cause = str(error).strip().splitlines()[-1]
        raise ClusterError(f"rank {error.error_index} of the probe failed: {cause}") from error
    except ProcessExitedException as error:
        raise ClusterError(f"the probe failed: {error}") from error
