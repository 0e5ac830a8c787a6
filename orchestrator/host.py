"""This machine: hardware, package versions, OOM kills, and signals that end us."""

import contextlib
import os
import platform
import re
import resource
import shutil
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import psutil

from search_spaces.errors import DISTRIBUTION, MachineError, exception_chain
from search_spaces.specification.schema import GIB
from workers.memory.nvml import nvml

# Measurements depend on these; after a change of one they have to be repeated.
KEY_PACKAGES = (
    *("deepspeed", "mlflow", "numpy", "nvidia-ml-py", "optuna", DISTRIBUTION, "pydantic", "ray"),
    *("tokenizers", "torch", "transformers"),
)

# Ray's driver and its processes hang with fewer
_FILES = (resource.RLIMIT_NOFILE, 256, "a process may open {} files", "ulimit -n")
# a sweep of one rank on two cores has 360 threads, and each counts
_PROCESSES = (resource.RLIMIT_NPROC, 256, "a user may start {} processes", "ulimit -u")
_SHARED_MEMORY = Path("/dev/shm")  # for the tensors that loaders and gloo pass on
_LEAST_FREE_BYTES = 32 * 2**20  # in a folder of worker processes
_LEAST_TEMPORARY_BYTES = 64 * 2**20
_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")  # Linux, cgroup v2
_CPU_INFO = Path("/proc/cpuinfo")
_CGROUP_EVENTS = Path("/sys/fs/cgroup/memory.events")  # of this container, under cgroup v2
_VMSTAT = Path("/proc/vmstat")  # of the whole machine
_OOM_KILL_FIELD = "oom_kill"


def check_limits(*, has_workers: bool) -> None:
    """Checks that this process may start what a sweep needs, and write its temporary files.

    Args:
        has_workers: The sweep's workers are on this machine too.

    Raises:
        MachineError: If it may not.
    """
    is_root = os.geteuid() == 0  # who may start any number
    starts = has_workers and not is_root
    for limit, least, words, command in (_FILES, _PROCESSES) if starts else (_FILES,):
        most, _ = resource.getrlimit(limit)
        if 0 <= most < least:
            raise MachineError(
                f"{words.format(most)} here, and a sweep needs {least}: raise the limit"
                f" ({command}), then run the same command again"
            )
    if has_workers and (fault := full_folder()):
        raise MachineError(fault)
    try:
        folder = os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()
        if shutil.disk_usage(folder).free >= _LEAST_TEMPORARY_BYTES:
            return
        fault = f"{folder} is full"
    except OSError as error:
        fault = f"there is no folder for temporary files ({error.strerror or error})"
    raise MachineError(f"{fault}: make room there, or set RAY_TMPDIR, then run it again")


def package_versions(*, every: bool = False) -> tuple[tuple[str, str], ...]:
    """Returns installed packages and their versions, sorted by name.

    Args:
        every: True for all packages, False for those in `KEY_PACKAGES`.
    """
    if not every:
        return tuple((name, version) for name in KEY_PACKAGES if (version := _version(name)))
    versions: dict[str, str] = {}
    for distribution in metadata.distributions():
        name = distribution.metadata["Name"]
        if name:  # a half-removed package leaves a folder without one
            versions.setdefault(re.sub(r"[-_.]+", "-", name).lower(), distribution.version)
    return tuple(sorted(versions.items()))


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def system_facts() -> dict[str, Any]:
    """Returns this machine's system, CPU, memory and GPUs as JSON values; None where unknown."""
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
    """Returns the processor's name, from the kernel if it has one, else from Python."""
    try:
        cpu_info = _CPU_INFO.read_text()
    except OSError:
        cpu_info = ""
    name = re.search(r"^model name\s*:\s*(.+)$", cpu_info, re.MULTILINE)
    return name.group(1).strip() if name else platform.processor() or platform.machine()


def host_memory_bytes() -> int:
    """Returns this machine's memory in bytes, or that of its container if it is less."""
    total: int = psutil.virtual_memory().total
    return min(total, container_memory_bytes() or total)


def container_memory_bytes() -> int | None:
    """Returns the memory limit of this container in bytes, None without one."""
    try:
        limit = _CGROUP_LIMIT.read_text().strip()
    except OSError:
        return None
    return int(limit) if limit.isdigit() else None  # "max" means that there is no limit


def _gpus() -> Iterator[dict[str, Any]]:
    with nvml() as library:
        if library is None:
            return
        try:
            driver = library.nvmlSystemGetDriverVersion()
            count = library.nvmlDeviceGetCount()
        except library.NVMLError as error:
            yield {"name": f"unreadable: {error}", "memory_gib": None, "driver": None}
            return
        for index in range(count):
            memory, answers = None, driver
            try:
                handle = library.nvmlDeviceGetHandleByIndex(index)
                name = library.nvmlDeviceGetName(handle)
                with contextlib.suppress(library.NVMLError):  # memory that is shared with the host
                    memory = round(library.nvmlDeviceGetMemoryInfo(handle).total / GIB, 2)
            except library.NVMLError as error:
                name, answers = f"unreadable: {error}", None
            yield {"name": name, "memory_gib": memory, "driver": answers}


def oom_kills() -> int:
    """Returns the number of processes that the kernel's OOM killer has ended so far.

    The count is that of this container if it has one, else that of the machine, which includes
    every container; 0 if the kernel keeps neither.

    Source:
        Linux, Documentation/admin-guide/cgroup-v2.rst (memory.events) and mm/oom_kill.c.
    """
    for file in (_CGROUP_EVENTS, _VMSTAT):
        try:
            lines = file.read_text().splitlines()
        except OSError:
            continue
        counts = dict(line.split(maxsplit=1) for line in lines)
        if _OOM_KILL_FIELD in counts:
            return int(counts[_OOM_KILL_FIELD])
    return 0


def full_folder(*folders: Path) -> str | None:
    """Returns a sentence on the first folder that is too full for workers; None if none is.

    It looks at those of the folders that exist, and at shared memory.
    """
    for folder in (*folders, _SHARED_MEMORY):
        with contextlib.suppress(OSError):
            free = shutil.disk_usage(folder).free
            if free < _LEAST_FREE_BYTES:
                return (
                    f"{folder} has {free / 2**20:.0f} MiB free, and worker processes need at least"
                    f" {_LEAST_FREE_BYTES / 2**20:.0f}: make room there"
                )
    return None


@dataclass
class Termination:
    """The signal that stops the sweep; `came` once it was received.

    It interrupts the main thread, unless `deliver` is set: then that is called there. Neither
    happens where a library's handler took it, or Python dropped the interrupt, as in a finalizer.
    """

    signum: signal.Signals = signal.SIGINT
    came: bool = False
    deliver: Callable[[], None] | None = None
    _handled: tuple[signal.Signals, ...] = ()
    _interrupted: bool = False

    def handle(self, signums: Collection[signal.Signals] | None = None) -> None:
        """Installs the handler; again, where a library has put its own in its place."""
        self._handled = self._handled if signums is None else tuple(signums)
        for signum in self._handled:
            signal.signal(signum, self._stop)

    def _stop(self, signum: int, _: FrameType | None) -> None:
        if not self._interrupted:  # the next one ends the process
            self._interrupted, self.came, self.signum = True, True, signal.Signals(signum)
            if self.deliver is None:
                raise KeyboardInterrupt
            self.deliver()

    def __str__(self) -> str:
        return "Ctrl-C" if self.signum == signal.SIGINT else self.signum.name


@contextlib.contextmanager
def termination_as_interrupt() -> Iterator[Termination]:
    """Raises KeyboardInterrupt on Ctrl-C and on SIGTERM, which `ray job stop` sends.

    No other exception passes through the calls of Ray and Ray Tune. The second signal ends the
    process and its children, even if the main thread never comes back to Python: a thread of its
    own reads which signals came.
    """
    termination = Termination()
    if threading.current_thread() is not threading.main_thread():
        yield termination
        return
    handled = [
        signum
        for signum in (signal.SIGINT, signal.SIGTERM)
        if signal.getsignal(signum) is not signal.SIG_IGN  # a shell ignores it in background jobs
    ]
    before = {signum: signal.getsignal(signum) for signum in handled}
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    wakeup = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
    arguments = (ours, handled, termination)
    watch = threading.Thread(target=_count_signals, args=arguments, daemon=True)
    watch.start()
    termination.handle(handled)
    try:
        yield termination
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
        signal.set_wakeup_fd(wakeup)
        theirs.close()
        watch.join()
        ours.close()


def _count_signals(
    source: socket.socket, handled: Collection[int], termination: Termination
) -> None:
    count = 0
    while received := source.recv(64):
        for signum in received:
            count += signum in handled
            if count == 1 and signum in handled:
                termination.came, termination.signum = True, signal.Signals(signum)
                sys.stderr.write(
                    "Stopping. Measurements are kept. Interrupt again to stop at once.\n"
                )
            elif count > 1:
                end_now(128 + signum)


def os_error_behind(error: BaseException) -> OSError | None:
    """Returns the error of this machine, such as a full disk, that a library made its own of.

    Ray's copies of errors of other processes have no number, and are left out.
    """
    system = (one for one in exception_chain(error) if isinstance(one, OSError))
    return next((one for one in system if one.errno is not None), None)


def end_now(code: int) -> NoReturn:
    """Ends this process at once, and with it all processes that it and its children started."""
    with contextlib.suppress(psutil.Error):
        kill_all(psutil.Process().children(recursive=True))
    os._exit(code)


def kill_all(processes: Iterable[psutil.Process]) -> None:
    """Kills processes, and none that has another one's id by now."""
    for process in processes:
        with contextlib.suppress(psutil.Error):  # `kill` looks at the start time
            process.kill()


def in_notebook() -> bool:
    """Returns True in the process of a notebook, where IPython can display."""
    ipython = sys.modules.get("IPython")
    return getattr(ipython and ipython.get_ipython(), "kernel", None) is not None


def below_notebook() -> bool:
    """Returns True in a command of a notebook's cell, whose terminal keeps every frame."""
    # as IPython's kernel sets them
    return (os.environ.get("TERM"), os.environ.get("GIT_PAGER")) == ("xterm-color", "cat")
