"""The process group in which trials train, apart from the one in which ranks agree."""

from __future__ import annotations

import contextlib
import datetime
import gc

import torch
import torch.distributed as dist
from torch.distributed.tensor import debug as tensor_debug

from workers.ranks import Ranks

_TOUCHES = 8  # enough for each of a group's few threads to get one


class TrialGroup:
    """Lent to one trial after the other, and replaced once one of them failed.

    When a rank fails, its peers wait for it in a collective. NCCL can be aborted; gloo closes its
    connections, and thereby wakes the peers, only when nothing holds the group any more: the model
    has to be dropped before `drop` is called. A rank alone has no group.
    """

    def __init__(self, ranks: Ranks, device: torch.device) -> None:
        self._ranks = ranks
        self._device = device
        self._group: dist.ProcessGroup | None = None

    def lend(self, seconds: float) -> dist.ProcessGroup | None:
        """The group, opened if there is none; all ranks call it together.

        Args:
            seconds: Longest wait in one collective of a group that is opened now.
        """
        if self._ranks.control is not None and self._group is None:
            self._group = dist.new_group(
                backend=dist.get_backend(), timeout=datetime.timedelta(seconds=seconds)
            )
            _touch(self._group, self._device)
        return self._group

    def drop(self) -> None:
        """Lets go of the group, so that peers who wait in it fail at once; may be called twice."""
        group, self._group = self._group, None
        if group is None:
            return
        with contextlib.suppress(RuntimeError):
            group.abort()  # does nothing for gloo
        with contextlib.suppress(RuntimeError, ValueError):  # a broken group may be gone
            dist.destroy_process_group(group)
        _forget_meshes()
        gc.collect()
        # Last and from Python, which lets the GIL go: gloo's threads are joined, and may wait for
        # it. Were a DDP model in a cycle the last to hold the group, both would wait for good.
        del group


def _touch(group: dist.ProcessGroup, device: torch.device) -> None:
    """Lets the group connect and its threads start, which takes memory once."""
    works = [
        dist.all_reduce(torch.ones(1, device=device), group=group, async_op=True)
        for _ in range(_TOUCHES)
    ]
    for work in works:
        if work is not None:
            work.wait()


def _forget_meshes() -> None:
    """Empties DTensor's caches, whose keys hold the device mesh, and with it the group."""
    clear = getattr(tensor_debug, "_clear_sharding_prop_cache", None)  # private, may go away
    if clear is not None:
        clear()
