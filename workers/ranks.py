"""The ranks of a group: who this process is among them, and how they talk."""

from __future__ import annotations

import datetime
import os
from dataclasses import dataclass
from typing import Self, TypeVar

import torch
import torch.distributed as dist

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
