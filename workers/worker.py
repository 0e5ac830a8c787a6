"""A worker process: its rank, its device and its memory meter."""

import platform
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import torch

from search_spaces.errors import ClusterError
from search_spaces.specification.schema import SweepSpec
from search_spaces.specification.sections import Device
from search_spaces.trial import Activity, Outcome
from workers.measure.host_threads import host_threads, use_threads
from workers.memory.device_runtime import AbstractDeviceRuntime, missing_tpu, runtime_for
from workers.memory.meter import Meter
from workers.plain_torch.data_parallel import meet_tpus
from workers.process_groups import Ranks, TrialGroup

_WARMUP_SIZE = 64
CONTROL_SECONDS = 120.0  # timeout for agreeing on an outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """One rank, ready to run trials one after the other.

    `announce` receives this rank's outcome before the ranks agree on one, so that it is not
    lost if they never do. `watch` receives what the first rank does.
    """

    ranks: Ranks
    device: torch.device
    runtime: AbstractDeviceRuntime
    meter: Meter
    group: TrialGroup
    announce: Callable[[Outcome], None]
    watch: Callable[[Activity], None]

    @classmethod
    def start(
        cls,
        spec: SweepSpec,
        announce: Callable[[Outcome], None] = lambda _: None,
        watch: Callable[[Activity], None] = lambda _: None,
    ) -> Self:
        """Joins the default process group, if there is one, and takes the memory baseline."""
        ranks = Ranks.join(CONTROL_SECONDS)
        device = pick_device(spec.cluster.device, ranks.local_rank)
        use_threads(host_threads(device, spec.cluster.cpus_per_worker))
        _load_libraries(device)
        runtime = runtime_for(device, ranks.local_world_size)
        return cls(
            ranks=ranks,
            device=device,
            runtime=runtime,
            meter=Meter(runtime, spec.memory_limit_bytes),
            group=TrialGroup(ranks, device, keeps_shapes=device.type == "cpu"),
            announce=announce,
            watch=watch,
        )


def device_name(device: torch.device) -> str:
    """Returns the name of a device, as its driver or platform reports it."""
    if device.type == "cpu":
        return platform.processor() or platform.machine()
    return str(torch.get_device_module(device).get_device_name(device))


def pick_device(wanted: Device, local_rank: int) -> torch.device:
    """Returns the device of a rank; `auto` prefers CUDA.

    Raises:
        ClusterError: If CUDA or a TPU is required and torch sees no such device.
    """
    if wanted == "tpu":
        if lack := missing_tpu():
            raise ClusterError(f"cluster.device is tpu, but {lack}")
        return meet_tpus()
    has_cuda = torch.cuda.is_available()
    if wanted == "cuda" and not has_cuda:
        raise ClusterError("cluster.device is cuda, but torch sees no CUDA device on this machine")
    if wanted == "cpu" or not has_cuda:
        return torch.device("cpu")
    device = torch.device("cuda", local_rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def _load_libraries(device: torch.device) -> None:
    # a tiny step: libraries and threads that start lazily must not count in a trial's memory
    layer = torch.nn.Linear(_WARMUP_SIZE, _WARMUP_SIZE, device=device)
    optimizer = torch.optim.AdamW(layer.parameters(), fused=True)
    layer(torch.ones(_WARMUP_SIZE, _WARMUP_SIZE, device=device)).sum().backward()
    optimizer.step()
