"""A backend with NCCL's manners over gloo: nobody wakes when a peer fails.

A collective returns its work at once, and waiting for it ends with the collective or with an abort
by this very process, never because a peer dropped its group, failed or exited. Groups that are
dropped without an abort stay open. A wait beyond the group's timeout ends the process, as NCCL's
watchdog does.

`register` makes the backend known as `BACKEND`. Where a program asks torch for gloo, `replace_gloo`
gives its default group this backend; with the folder `stubborn_site` beside this file on
PYTHONPATH, torch calls it in each process that imports torch (`torch.backends` entry points).
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import os
import queue
import sys
import threading
import time
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

BACKEND: Final = "stubborn"
_LOOK_SECONDS = 0.01  # between two looks at an abort
_COLLECTIVES = (
    *("all_gather_single", "all_gather_single_coalesced", "all_to_all_single", "allgather"),
    *("allgather_into_tensor_coalesced", "_allgather_base", "allreduce", "allreduce_coalesced"),
    *("alltoall", "alltoall_base", "barrier", "broadcast", "gather", "recv", "reduce"),
    *("reduce_scatter", "reduce_scatter_single", "reduce_scatter_single_coalesced"),
    *("reduce_scatter_tensor_coalesced", "_reduce_scatter_base", "scatter", "send"),
)
_open: list[Any] = []  # what is dropped without an abort never closes


class StubbornWork(distributed_c10d.Work):
    """A collective under way, which only its end or this process's abort lets go."""

    def __init__(self, group: StubbornGroup, inner: Any) -> None:
        """Takes the work of gloo; None if gloo noticed at once that a peer is gone."""
        super().__init__()
        self._group, self._inner = group, inner
        self._ended = threading.Event()
        self._until = time.monotonic() + group.seconds
        if inner is not None:
            group.works.put((inner, self._ended))

    def wait(self, timeout: Any = None) -> bool:
        """Waits for the collective.

        Raises:
            dist.DistBackendError: If this process aborted its group.
        """
        while not self._ended.wait(_LOOK_SECONDS):
            if self._group.aborted:
                raise dist.DistBackendError("the communicator was aborted")
            if time.monotonic() > self._until:
                sys.stderr.write("stubborn backend: a collective timed out\n")
                os.abort()
        return True

    def is_completed(self) -> bool:
        """Returns True once nothing is left to wait for."""
        return self._ended.is_set()

    def get_future(self) -> torch.futures.Future[Any]:
        """Waits, and returns the results, as DDP's reducer asks for them."""
        self.wait()
        done: torch.futures.Future[Any] = self._inner.get_future()
        return done


_Works = queue.SimpleQueue[tuple[Any, threading.Event] | None]


def _end_works(works: _Works) -> None:
    """Waits for one work after the other; one that fails never ends."""
    while (item := works.get()) is not None:
        inner, ended = item
        with contextlib.suppress(RuntimeError):
            inner.wait()
            ended.set()


class StubbornGroup(dist.ProcessGroup):
    """A group over gloo that closes only when it is aborted here."""

    def __init__(self, store: Any, rank: int, size: int, timeout: datetime.timedelta) -> None:
        """Connects as gloo does."""
        super().__init__(rank, size)  # type: ignore[call-arg]
        self.seconds = timeout.total_seconds()
        self.aborted = False
        kind, device = dist.ProcessGroup.BackendType.GLOO, torch.device("cpu")
        inner: Any = dist.ProcessGroup(store, rank, size)
        inner._set_default_backend(kind)
        inner._register_backend(device, kind, dist.ProcessGroupGloo(store, rank, size, timeout))
        self._inner = inner
        _open.append(inner)
        self.works: _Works = queue.SimpleQueue()
        threading.Thread(target=_end_works, args=(self.works,), daemon=True).start()

    def getBackendName(self) -> str:  # noqa: N802  # torch's own name
        """Returns the name under which it is registered."""
        return BACKEND

    def setGroupName(self, name: str) -> None:  # noqa: N802
        """Keeps the name, as torch's own groups leave to their backends."""
        self._name = name

    def getGroupName(self) -> str:  # noqa: N802
        """Returns the name that torch gave."""
        return self._name

    def abort(self) -> None:
        """Ends every wait of this process, and closes the group."""
        self.aborted = True
        inner, self._inner = self._inner, None
        if inner is not None:
            _open.remove(inner)
            self.works.put(None)

    def shutdown(self) -> None:
        """Closes nothing: peers are left in what they wait for."""


def _collective(name: str) -> Any:
    def run(self: StubbornGroup, *arguments: Any, **options: Any) -> StubbornWork:
        inner = self._inner
        if inner is None:
            raise dist.DistBackendError("the communicator was aborted")
        work = None
        with contextlib.suppress(RuntimeError):
            work = getattr(inner, name)(*arguments, **options)
        return StubbornWork(self, work)

    return run


for _name in _COLLECTIVES:
    if hasattr(dist.ProcessGroup, _name):
        setattr(StubbornGroup, _name, _collective(_name))


def register() -> None:
    """Makes the backend known to torch, once per process."""
    if not hasattr(dist.Backend, BACKEND.upper()):
        dist.Backend.register_backend(BACKEND, StubbornGroup, devices=["cpu"])


def replace_gloo() -> None:
    """Lets the default group have this backend where gloo is asked for."""
    register()
    init = dist.init_process_group

    @functools.wraps(init)
    def replaced(backend: str | None = None, *arguments: Any, **options: Any) -> None:
        init(BACKEND if backend == "gloo" else backend, *arguments, **options)

    dist.init_process_group = replaced
