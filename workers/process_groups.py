"""Process groups: one to train trials in, and a separate one to agree on outcomes."""

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
    """This process among the ranks of its worker group.

    `control` is a gloo group separate from the one that trains. When training breaks in the
    middle of a collective, the ranks can still agree on the outcome.
    """

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    control: dist.ProcessGroup | None

    @classmethod
    def join(cls, control_seconds: float) -> Self:
        """Joins the ranks of the default process group, or stays alone if there is none.

        Args:
            control_seconds: Timeout for agreeing on an outcome.
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
        """Returns the values of all ranks, in the order of ranks, on every rank.

        Raises:
            RuntimeError: If a rank is gone or times out.
        """
        if self.control is None:
            return [value]
        gathered: list[T | None] = [None] * self.world_size
        dist.all_gather_object(gathered, value, group=self.control)
        return gathered  # type: ignore[return-value]  # filled by now


def sum_over_ranks(
    values: list[float], group: dist.ProcessGroup | None, device: torch.device
) -> list[float]:
    """Sums values over all ranks, element by element."""
    if group is None:
        return values
    tensor = torch.tensor(values, dtype=torch.float64, device=device)
    dist.all_reduce(tensor, group=group)
    summed: list[float] = tensor.tolist()
    return summed


Ranked = tuple[int, ...]
_TOUCHES = 8  # enough to start each of a group's few threads


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """The ranks of a trial.

    `devices` has the dimensions of `MESH_DIMENSIONS` in `search_spaces.settings.rank_layout`.
    Select a submesh by name, as in `devices["replicate", "shard"]`. `group` holds all ranks.
    """

    place: RankCoordinates
    group: dist.ProcessGroup
    devices: DeviceMesh

    @property
    def data_group(self) -> dist.ProcessGroup:
        """Data-parallel ranks; with hybrid shard only those of this rank's replica."""
        name = "replicate" if self.devices["shard"].size() == 1 else "shard"
        return self.devices.get_group(name)

    @property
    def is_first_replica(self) -> bool:
        """True if this rank belongs to the first replica."""
        return self.devices["replicate"].get_local_rank() == 0

    def size(self, *names: str) -> int:
        """Returns the product of the sizes of these dimensions."""
        size = 1
        for name in names:
            size *= self.devices[name].size()
        return size


class TrialGroup:
    """Process group that consecutive trials share, replaced after a failure.

    When a rank fails, its peers wait for it in a collective. NCCL can be aborted. gloo wakes the
    peers by closing its connections, which it does only when nothing references the group any
    more: delete the model before calling `abort`. The same holds for the groups of a mesh, which
    are opened once for each shape. A single rank has no group.
    """

    def __init__(self, ranks: Ranks, device: torch.device) -> None:
        self._ranks = ranks
        self._device = device
        self._group: dist.ProcessGroup | None = None
        self._subgroups: dict[Ranked, dist.ProcessGroup | None] = {}  # None: without this rank
        self._meshes: dict[Ranked, Mesh] = {}

    def acquire(self, seconds: float, plan: Plan) -> Mesh | None:
        """Returns the mesh of a plan; all ranks call it together.

        Args:
            seconds: Timeout of a collective, for groups that are opened now.
            plan: A plan for all ranks of the group.

        Returns:
            The mesh, None for a single rank.

        Raises:
            ValueError: If the plan needs another number of ranks.
        """
        if self._ranks.world_size != plan.world_size:
            raise ValueError(
                f"the plan needs {plan.world_size} ranks,"
                f" but the group has {self._ranks.world_size}"
            )
        if self._ranks.control is None:
            return None
        timeout = datetime.timedelta(seconds=seconds)
        if self._group is None:
            self._group = dist.new_group(backend=dist.get_backend(), timeout=timeout)
            _connect(self._group, self._device)
        shape = mesh_shape(plan)
        if shape not in self._meshes:
            grid = torch.arange(plan.world_size).reshape(shape)
            groups = [
                self._row_group(grid.movedim(dimension, -1).reshape(-1, size), timeout)
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

    def _row_group(self, rows: torch.Tensor, timeout: datetime.timedelta) -> dist.ProcessGroup:
        """Returns the group of the row with this rank; all ranks open missing groups together."""
        assert self._group is not None
        if rows.shape[1] == self._ranks.world_size:
            return self._group
        own: dist.ProcessGroup | None = None
        for row in map(tuple, rows.tolist()):
            is_member = self._ranks.rank in row
            if row not in self._subgroups:
                opened = dist.new_group(list(row), backend=dist.get_backend(), timeout=timeout)
                self._subgroups[row] = opened if is_member else None
                if is_member:
                    _connect(opened, self._device)
            if is_member:
                own = self._subgroups[row]
        assert own is not None
        return own

    def abort(self) -> None:
        """Drops all groups, so that waiting peers fail at once; further calls do nothing."""
        groups = [group for group in (self._group, *self._subgroups.values()) if group is not None]
        self._group = None
        self._subgroups.clear()
        self._meshes.clear()
        if not groups:
            return
        for place in range(len(groups)):
            with contextlib.suppress(RuntimeError):
                groups[place].abort()  # does nothing for gloo
            with contextlib.suppress(RuntimeError, ValueError):  # a broken group may be gone
                dist.destroy_process_group(groups[place])
        clear_mesh_caches()
        gc.collect()
        # Last and from Python, which releases the GIL: the destructor joins gloo's threads, which
        # may wait for it. If a DDP model in a reference cycle held the last reference, both would
        # deadlock.
        while groups:
            groups.pop()


def _connect(group: dist.ProcessGroup, device: torch.device) -> None:
    """Connects the group and starts its threads, whose memory must not count in a trial."""
    works = [
        dist.all_reduce(torch.ones(1, device=device), group=group, async_op=True)
        for _ in range(_TOUCHES)
    ]
    for work in works:
        if work is not None:
            work.wait()


def clear_mesh_caches() -> None:
    """Empties DTensor's caches, whose keys reference the device mesh and so the group."""
    # this import loads torch's compiler, as the first optimizer does anyway
    from torch.distributed.tensor import debug

    # private functions, which may be missing in another version
    clear = getattr(debug, "_clear_sharding_prop_cache", None)
    if clear is not None:
        clear()
    clear = getattr(_redistribute, "clear_redistribute_planner_cache", None)
    if clear is not None:
        clear()
    for owner in (_redistribute, _collective_utils, _collective_utils.MeshTopoInfo):
        for name in vars(owner):
            clear = getattr(getattr(owner, name), "cache_clear", None)  # of functools.cache
            if clear is not None:
                clear()
