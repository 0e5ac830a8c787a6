"""The ranks of a group: who this process is among them, and how they talk."""

from __future__ import annotations

import contextlib
import datetime
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.tensor import debug as tensor_debug

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """This process among the ranks of its group.

    `control` is a gloo group apart from the one that trains: when training breaks in the
    middle of a collective, the ranks can still agree on what happened.
    """

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    control: dist.ProcessGroup | None

    @classmethod
    def join(cls, control_seconds: float) -> Self:
        """The ranks of the default process group, or this process alone if there is none.

        Args:
            control_seconds: Longest wait for another rank when agreeing on an outcome.
        """
        if not dist.is_initialized() or dist.get_world_size() == 1:
            return cls(rank=0, world_size=1, local_rank=0, local_world_size=1, control=None)
        rank, world_size = dist.get_rank(), dist.get_world_size()
        control = dist.new_group(
            backend="gloo", timeout=datetime.timedelta(seconds=control_seconds)
        )
        return cls(
            rank=rank,
            world_size=world_size,
            local_rank=int(os.environ.get("LOCAL_RANK", rank)),
            local_world_size=int(os.environ.get("LOCAL_WORLD_SIZE", world_size)),
            control=control,
        )

    def gather(self, value: T) -> list[T]:
        """What each rank holds, in the order of ranks; the same list on all of them.

        Raises:
            RuntimeError: If a rank is gone, or does not answer in time.
        """
        if self.control is None:
            return [value]
        gathered: list[T | None] = [None] * self.world_size
        dist.all_gather_object(gathered, value, group=self.control)
        return gathered  # type: ignore[return-value]  # filled by now

    @contextlib.contextmanager
    def trial_group(self, seconds: float) -> Iterator[dist.ProcessGroup | None]:
        """A process group for one trial, gone afterwards: costs some milliseconds.

        When a rank fails, its peers wait for it in a collective. NCCL can be aborted; gloo
        closes its connections, and thereby wakes the peers, only when nothing holds the group
        any more: the caller has to drop the model, and `forget_meshes` what DTensor keeps.

        Args:
            seconds: Longest wait in one collective.
        """
        if self.control is None:
            yield None
            return
        group = dist.new_group(
            backend=dist.get_backend(), timeout=datetime.timedelta(seconds=seconds)
        )
        try:
            yield group
        except BaseException:
            with contextlib.suppress(RuntimeError):
                group.abort()  # does nothing for gloo
            raise
        finally:
            with contextlib.suppress(RuntimeError, ValueError):  # a broken group may be gone
                dist.destroy_process_group(group)


def forget_meshes() -> None:
    """Empties DTensor's caches, whose keys hold the device mesh, and with it the group.

    Without it the first sharded trial of a process keeps its group for good, and its peers
    wait for their time-out when it fails.
    """
    clear = getattr(tensor_debug, "_clear_sharding_prop_cache", None)  # private, may go away
    if clear is not None:
        clear()


def total(
    values: list[float], group: dist.ProcessGroup | None, device: torch.device
) -> list[float]:
    """The sums over all ranks, element by element."""
    if group is None:
        return values
    tensor = torch.tensor(values, dtype=torch.float64, device=device)
    dist.all_reduce(tensor, group=group)
    summed: list[float] = tensor.tolist()
    return summed


def touch(group: dist.ProcessGroup, device: torch.device) -> None:
    """Lets the group connect and its threads start, which takes memory once."""
    works = [
        dist.all_reduce(torch.ones(1, device=device), group=group, async_op=True)
        for _ in range(_TOUCHES)
    ]
    for work in works:
        if work is not None:
            work.wait()


_TOUCHES = 8  # enough for each of a group's few threads to get one
