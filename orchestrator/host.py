"""What hardware and software a measurement belongs to."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from types import FrameType
from typing import Any

import psutil

from search_spaces.errors import DISTRIBUTION
from search_spaces.spec.schema import GIB
from workers.memory.nvml import nvml

# What a measurement depends on; a change of one is reason enough to measure again.
KEY_PACKAGES = (
    "deepspeed",
    "mlflow",
    "numpy",
    "nvidia-ml-py",
    "optuna",
    DISTRIBUTION,
    "pydantic",
    "ray",
    "tokenizers",
    "torch",
    "transformers",
)

_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")  # Linux, cgroup v2
_CPU_INFO = Path("/proc/cpuinfo")
_POLL_SECONDS = 0.2
_SLACK_BYTES = 256 * 2**20  # what others on the device may take meanwhile, as a display
_OWN = Path("/sys/fs/cgroup/memory.events")  # a container's own, under cgroup v2
_MACHINE = Path("/proc/vmstat")
_FIELD = "oom_kill"
_END_POLL_SECONDS = 0.1
_END_SECONDS = 10.0  # after SIGKILL; longer only in the kernel, as with a dead disk or driver
_PATIENCE = 2  # the signal of this number is only answered; the next one ends what closes


def package_versions(*, every: bool = False) -> tuple[tuple[str, str], ...]:
    """Packages installed here and their versions, sorted by name.

    Args:
        every: All of them; otherwise those of `KEY_PACKAGES`.
    """
    if not every:
        return tuple((name, version) for name in KEY_PACKAGES if (version := _version(name)))
    found: dict[str, str] = {}
    for distribution in metadata.distributions():
        name = distribution.metadata["Name"]
        if name:  # a half-removed package leaves a folder without one
            found.setdefault(re.sub(r"[-_.]+", "-", name).lower(), distribution.version)
    return tuple(sorted(found.items()))


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def system_facts() -> dict[str, Any]:
    """This machine as JSON values: system, CPU, memory, GPUs; None where nobody can say."""
    limit = container_memory_bytes()
    return {
        "host": platform.node(),
        "system": platform.platform(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "cpu": cpu_name(),
        "cores_physical": psutil.cpu_count(logical=False),
        "cores_logical": psutil.cpu_count(),
        "cores_usable": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "memory_gib": round(psutil.virtual_memory().total / GIB, 2),
        "container_memory_gib": None if limit is None else round(limit / GIB, 2),
        "gpus": list(_gpus()),
    }


def cpu_name() -> str:
    """The processor's name, as the kernel has it where there is one that tells."""
    try:
        told = _CPU_INFO.read_text()
    except OSError:
        told = ""
    named = re.search(r"^model name\s*:\s*(.+)$", told, re.MULTILINE)
    return named.group(1).strip() if named else platform.processor() or platform.machine()


def container_memory_bytes() -> int | None:
    """The memory limit of this container in bytes, None without one."""
    try:
        told = _CGROUP_LIMIT.read_text().strip()
    except OSError:
        return None
    return int(told) if told.isdigit() else None  # "max" means that there is no limit


def _gpus() -> Iterator[dict[str, Any]]:
    with nvml() as library:
        if library is None:
            return
        try:
            driver = library.nvmlSystemGetDriverVersion()
            for index in range(library.nvmlDeviceGetCount()):
                handle = library.nvmlDeviceGetHandleByIndex(index)
                total = library.nvmlDeviceGetMemoryInfo(handle).total
                name = library.nvmlDeviceGetName(handle)
                yield {"name": name, "memory_gib": round(total / GIB, 2), "driver": driver}
        except library.NVMLError as error:
            yield {"name": f"unreadable: {error}", "memory_gib": None, "driver": None}


def device_use() -> dict[str, int]:
    """Bytes in use of each GPU of this machine, by its UUID, in the driver's order."""
    with nvml() as library:
        if library is None:
            return {}
        used = dict[str, int]()
        with contextlib.suppress(library.NVMLError):  # what it does not tell is not waited for
            for index in range(library.nvmlDeviceGetCount()):
                handle = library.nvmlDeviceGetHandleByIndex(index)
                uuid = library.nvmlDeviceGetUUID(handle)
                used[str(uuid)] = int(library.nvmlDeviceGetMemoryInfo(handle).used)
        return used


def visible_device_use(read: Callable[[], Mapping[str, int]] = device_use) -> dict[str, int]:
    """Of the GPUs alone that this process may use, by `CUDA_VISIBLE_DEVICES`.

    Ray sets that to the devices that all ranks of a group have on the node, as indices or UUIDs.
    """
    names = os.environ.get("CUDA_VISIBLE_DEVICES")
    if names == "":
        return {}
    used = dict(read())
    if names is None:
        return used
    order = list(used)
    chosen = [
        order[int(name)] if name.isdigit() and int(name) < len(order) else name
        for name in map(str.strip, names.split(","))
    ]
    return {uuid: used[uuid] for uuid in chosen if uuid in used}


def unreleased(
    before: Mapping[str, int],
    seconds: float,
    read: Callable[[], Mapping[str, int]] = device_use,
) -> tuple[str, ...]:
    """Waits until no more is in use than before a group; what is held even so, a sentence each.

    Args:
        before: Bytes in use when the group began, by the GPU's UUID.
        seconds: Longest wait.
        read: What is in use now.
    """
    until = time.monotonic() + seconds
    while held := {
        uuid: now - before[uuid]
        for uuid, now in (read() if before else {}).items()
        if uuid in before and now - before[uuid] > _SLACK_BYTES
    }:
        if time.monotonic() >= until:
            break
        time.sleep(_POLL_SECONDS)
    return tuple(
        f"{more / GIB:.1f} GiB of {uuid} did not come back in {seconds:.0f} s after its processes"
        " had ended: nvidia-smi says who holds them"
        for uuid, more in held.items()
    )


def oom_kills() -> int:
    """Processes that the kernel's OOM killer ended so far, here or else on the whole machine.

    See Documentation/admin-guide/cgroup-v2.rst (memory.events) and mm/oom_kill.c, which counts
    those of any cgroup for the machine too. 0 where nobody counts.
    """
    for file in (_OWN, _MACHINE):
        try:
            lines = file.read_text().splitlines()
        except OSError:
            continue
        counts = dict(line.split(maxsplit=1) for line in lines)
        if _FIELD in counts:
            return int(counts[_FIELD])
    return 0


def end_leftovers(leaders: Collection[int], seconds: float) -> tuple[int, ...]:
    """Waits for the process groups of workers on this machine to end, then kills what is left.

    Args:
        leaders: Process ids of workers. What is started from now on is none of theirs, though it
            may be given the same ids.
        seconds: How long they may take by themselves.

    Returns:
        Those that are still there, even so.
    """
    now = time.time()
    if not _awaited(leaders, now, seconds):
        for pid in _members(leaders, now):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 9)
        _awaited(leaders, now, _END_SECONDS)
    return tuple(_members(leaders, now))


def _awaited(leaders: Collection[int], before: float, seconds: float) -> bool:
    until = time.monotonic() + seconds
    while any(True for _ in _members(leaders, before)):
        if time.monotonic() >= until:
            return False
        time.sleep(_END_POLL_SECONDS)
    return True


def _members(leaders: Collection[int], before: float) -> Iterator[int]:
    """Processes of these groups that were started before, and run or could."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError, PermissionError):
            if os.getpgid(process.pid) not in leaders:
                continue
            if process.create_time() < before and process.status() != psutil.STATUS_ZOMBIE:
                yield process.pid


@dataclass
class Termination:
    """The signal that came, and how often one did."""

    signum: signal.Signals = signal.SIGINT
    times: int = 0

    def __str__(self) -> str:
        return "Ctrl-C" if self.signum == signal.SIGINT else self.signum.name


@contextlib.contextmanager
def termination_as_interrupt() -> Iterator[Termination]:
    """Ctrl-C, and SIGTERM, which `ray job stop` sends, raise KeyboardInterrupt; once.

    No other exception: Ray and Ray Tune let none through their calls. A second one, which would cut
    short what the first one made a process close, is only answered; a third one ends it at once.
    """
    came = Termination()

    def stop(signum: int, _: FrameType | None) -> None:
        came.times += 1
        if came.times == _PATIENCE:
            sys.stderr.write("Stopping: what was measured is kept. Once more ends it at once.\n")
            return
        came.signum = signal.Signals(signum)
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield came
        return
    heard = [
        signum
        for signum in (signal.SIGINT, signal.SIGTERM)
        if signal.getsignal(signum) is not signal.SIG_IGN  # as of what a shell starts behind itself
    ]
    before = {signum: signal.signal(signum, stop) for signum in heard}
    try:
        yield came
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
