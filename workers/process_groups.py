"""The process group in which trials train, apart from the one in which ranks agree."""

from __future__ import annotations

import contextlib
import datetime
import gc
import os
from dataclasses import dataclass
from typing import Self, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import _collective_utils, _redistribute

from search_spaces.plan import Plan
from search_spaces.settings.rank_layout import (
    MESH_DIMENSIONS,
    RankCoordinates,
    mesh_shape,
    rank_coordinates,
)

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


Ranked = tuple[int, ...]
_TOUCHES = 8  # enough for each of a group's few threads to get one


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """The ranks of a trial.

    `devices` has the dimensions of `MESH_DIMENSIONS` in `search_spaces.settings.rank_layout`; take
    a part of it by name, as in `devices["replicate", "shard"]`. `group` holds all ranks.
    """

    place: RankCoordinates
    group: dist.ProcessGroup
    devices: DeviceMesh

    @property
    def data_group(self) -> dist.ProcessGroup:
        """The ranks over which gradients are averaged, unless they are replicas of shards."""
        name = "replicate" if self.devices["shard"].size() == 1 else "shard"
        return self.devices.get_group(name)

    @property
    def is_first_replica(self) -> bool:
        """Whether this rank holds the first copy of what it holds, of all that replicate it."""
        return self.devices["replicate"].get_local_rank() == 0

    def size(self, *names: str) -> int:
        """Ranks along these dimensions together."""
        size = 1
        for name in names:
            size *= self.devices[name].size()
        return size


class TrialGroup:
    """Lent to one trial after the other, and replaced once one of them failed.

    When a rank fails, its peers wait for it in a collective. NCCL can be aborted; gloo closes its
    connections, and thereby wakes the peers, only when nothing holds the group any more: the model
    has to be dropped before `drop` is called. The same goes for the groups of a mesh, which are
    opened once for each shape. A rank alone has no group.
    """

    def __init__(self, ranks: Ranks, device: torch.device) -> None:
        self._ranks = ranks
        self._device = device
        self._group: dist.ProcessGroup | None = None
        self._parts: dict[Ranked, dist.ProcessGroup | None] = {}  # None: of other ranks
        self._meshes: dict[Ranked, Mesh] = {}

    def lend(self, seconds: float, plan: Plan) -> Mesh | None:
        """The ranks as the plan arranges them; all ranks call it together.

        Args:
            seconds: Longest wait in one collective of a group that is opened now.
            plan: Whose world is the whole group.

        Raises:
            ValueError: If the plan needs another number of ranks.
        """
        if self._ranks.world_size != plan.world_size:
            raise ValueError(
                f"the plan needs {plan.world_size} ranks, the group has {self._ranks.world_size}"
            )
        if self._ranks.control is None:
            return None
        limit = datetime.timedelta(seconds=seconds)
        if self._group is None:
            self._group = dist.new_group(backend=dist.get_backend(), timeout=limit)
            _touch(self._group, self._device)
        shape = mesh_shape(plan)
        if shape not in self._meshes:
            grid = torch.arange(plan.world_size).reshape(shape)
            groups = [
                self._along(grid.movedim(dimension, -1).reshape(-1, size), limit)
                for dimension, size in enumerate(shape)
            ]
            self._meshes[shape] = Mesh(
                place=rank_coordinates(plan, self._ranks.rank),
                group=self._group,
                devices=DeviceMesh.from_group(
                    groups, self._device.type, mesh=grid, mesh_dim_names=MESH_DIMENSIONS
                ),
            )
        return self._meshes[shape]

    def _along(self, rows: torch.Tensor, limit: datetime.timedelta) -> dist.ProcessGroup:
        """This rank's group among these rows; opens what is not open, on all ranks alike."""
        assert self._group is not None
        if rows.shape[1] == self._ranks.world_size:
            return self._group
        mine: dist.ProcessGroup | None = None
        for row in map(tuple, rows.tolist()):
            inside = self._ranks.rank in row
            if row not in self._parts:
                opened = dist.new_group(list(row), backend=dist.get_backend(), timeout=limit)
                self._parts[row] = opened if inside else None
                if inside:
                    _touch(opened, self._device)
            if inside:
                mine = self._parts[row]
        assert mine is not None
        return mine

    def drop(self) -> None:
        """Lets go of all groups, so that peers who wait in them fail at once; callable twice."""
        groups = [group for group in (self._group, *self._parts.values()) if group is not None]
        self._group = None
        self._parts.clear()
        self._meshes.clear()
        if not groups:
            return
        for place in range(len(groups)):
            with contextlib.suppress(RuntimeError):
                groups[place].abort()  # does nothing for gloo
            with contextlib.suppress(RuntimeError, ValueError):  # a broken group may be gone
                dist.destroy_process_group(groups[place])
        forget_meshes()
        gc.collect()
        # Last and from Python, which lets the GIL go: gloo's threads are joined, and may wait for
        # it. Were a DDP model in a cycle the last to hold a group, both would wait for good.
        while groups:
            groups.pop()


def _touch(group: dist.ProcessGroup, device: torch.device) -> None:
    """Lets the group connect and its threads start, which takes memory once."""
    works = [
        dist.all_reduce(torch.ones(1, device=device), group=group, async_op=True)
        for _ in range(_TOUCHES)
    ]
    for work in works:
        if work is not None:
            work.wait()


def forget_meshes() -> None:
    """Empties DTensor's caches, whose keys hold the device mesh, and with it the group."""
    # its import loads torch's compiler, as the first optimizer does anyway
    from torch.distributed.tensor import debug

    clear = getattr(debug, "_clear_sharding_prop_cache", None)  # private, may go away
    if clear is not None:
        clear()
    clear = getattr(_redistribute, "clear_redistribute_planner_cache", None)  # as private
    if clear is not None:
        clear()
    for place in (_redistribute, _collective_utils, _collective_utils.MeshTopoInfo):
        for name in vars(place):
            clear = getattr(getattr(place, name), "cache_clear", None)  # of functools.cache
            if clear is not None:
                clear()
