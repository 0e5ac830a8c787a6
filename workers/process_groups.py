"""Process groups: the ranks' default one, one to train trials in, and one to agree on outcomes."""

import contextlib
import datetime
import gc
import ipaddress
import math
import os
import socket
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Self

import psutil
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
from workers.alarm import Alarm

_INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
_NCCL_ERRORS = "TORCH_NCCL_ASYNC_ERROR_HANDLING"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendezvous:
    """Meeting point of the ranks of a group: a store of the first one.

    torch's own store listens on every address of a machine and asks for no token. This one listens
    on the address of the node alone: 127.0.0.1 where Plimsoll started Ray.

    Attributes:
        address: IP address of the first rank's node.
        port: Port of the store there.
        world_size: Ranks of the group.
        backend: One of `BACKENDS` in `search_spaces.hardware.device`.
        seconds: Longest wait for another rank.
    """

    address: str
    port: int
    world_size: int
    backend: str
    seconds: float


def join_group(at: Rendezvous, rank: int, listener: socket.socket | None) -> None:
    """Joins the default process group; all ranks call it together.

    Args:
        at: Where the ranks meet.
        rank: Of this process.
        listener: The first rank's listening socket, which the store takes over.
    """
    stay_on_loopback(at.address)
    leave_errors_to_alarm()
    timeout = datetime.timedelta(seconds=at.seconds)
    store = dist.TCPStore(  # type: ignore[attr-defined]
        at.address,
        at.port,
        at.world_size,
        is_master=listener is not None,
        timeout=timeout,
        master_listen_fd=None if listener is None else listener.detach(),
    )
    dist.init_process_group(
        at.backend, store=store, rank=rank, world_size=at.world_size, timeout=timeout
    )


def leave_errors_to_alarm() -> None:
    """Keeps NCCL's watchdog from ending a process whose communicators are aborted by the alarm.

    Source:
        torch/distributed/distributed_c10d.py (2.13), `_abort_process_group`: "this API should be
        used with `TORCH_NCCL_ASYNC_ERROR_HANDLING` turned off (i.e. set to 0)".
    """
    os.environ.setdefault(_NCCL_ERRORS, "0")


def stay_on_loopback(address: str) -> None:
    """Lets gloo and NCCL listen on the loopback interface alone, if the ranks meet there."""
    if not ipaddress.ip_address(address).is_loopback:
        return
    for name, addresses in psutil.net_if_addrs().items():
        if any(each.address == address for each in addresses):
            for variable in _INTERFACES:
                os.environ.setdefault(variable, name)


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

    def gather(self, text: bytes) -> list[bytes]:
        """Returns the texts of all ranks, in the order of ranks, on every rank.

        They are sent as they are: torch's `all_gather_object` would unpickle what a peer sends.

        Raises:
            RuntimeError: If a rank is gone or times out.
        """
        if self.control is None:
            return [text]
        sizes = torch.zeros(self.world_size, dtype=torch.int64)
        dist.all_gather_into_tensor(sizes, torch.tensor([len(text)]), group=self.control)
        longest = int(sizes.max())
        padded = torch.frombuffer(bytearray(text.ljust(longest)), dtype=torch.uint8)
        texts = torch.zeros(self.world_size * longest, dtype=torch.uint8)
        dist.all_gather_into_tensor(texts, padded, group=self.control)
        rows = zip(texts.reshape(self.world_size, longest), sizes.tolist(), strict=True)
        return [row[:size].numpy().tobytes() for row, size in rows]


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
    `resharded` has the groups of `plan.reshard_ranks` as its rows, `experts` and `context` those of
    the knobs of these names, all with dimensions "apart" and "together"; None without them.
    """

    place: RankCoordinates
    group: dist.ProcessGroup
    devices: DeviceMesh
    resharded: DeviceMesh | None = None
    experts: DeviceMesh | None = None
    context: DeviceMesh | None = None

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

    When a rank fails, its peers wait for it in a collective. gloo wakes them by closing its
    connections, which it does only when nothing references the group any more: delete the model
    before calling `abort`. Other backends need an alarm. The same holds for the groups of a mesh,
    which are opened once for each shape, and on a GPU closed when a plan has another one: there a
    group holds memory, which would count in the plans after it. A single rank has no group.
    """

    def __init__(self, ranks: Ranks, device: torch.device, *, keeps_shapes: bool = True) -> None:
        """Starts without groups.

        Args:
            ranks: This process among the ranks.
            device: Where the ranks communicate.
            keeps_shapes: True to keep the groups of all shapes of the mesh, False for the last.
        """
        self._ranks = ranks
        self._device = device
        self._keeps_shapes = keeps_shapes
        has_alarm = ranks.control is not None and dist.get_backend() != "gloo"
        self._alarm = Alarm(ranks.rank, ranks.world_size) if has_alarm else None
        self._group: dist.ProcessGroup | None = None
        self._subgroups: dict[Ranked, dist.ProcessGroup | None] = {}  # None: without this rank
        self._meshes: dict[tuple[Ranked, Ranked], Mesh] = {}

    @property
    def was_woken(self) -> bool:
        """True if a peer failed during the last trial, and this rank's groups were aborted."""
        return self._alarm is not None and self._alarm.rung

    def watched(self) -> AbstractContextManager[None]:
        """Returns the context of a trial, in which a peer that fails wakes this rank."""
        return nullcontext() if self._alarm is None else self._alarm.watched(self._abort_all)

    def acquire(self, seconds: float, plan: Plan) -> Mesh | None:
        """Returns the mesh of a plan; all ranks call it together.

        Args:
            seconds: Timeout of a collective in this trial.
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
            self._group = self._open(None, timeout)
            _connect(self._group, self._device)
        shape, rows = mesh_shape(plan), (plan.reshard_ranks, plan.experts, plan.context)
        if (shape, rows) not in self._meshes:
            if not self._keeps_shapes:
                self._close_subgroups()
            resharded, experts, context = (
                self._grid((plan.world_size // size, size), ("apart", "together"), timeout)
                if size > 1
                else None
                for size in rows
            )
            self._meshes[shape, rows] = Mesh(
                place=rank_coordinates(plan, self._ranks.rank),
                group=self._group,
                devices=self._grid(shape, MESH_DIMENSIONS, timeout),
                resharded=resharded,
                experts=experts,
                context=context,
            )
        for group in self._groups():
            _set_timeout(group, self._device, timeout)
        return self._meshes[shape, rows]

    def _grid(
        self, shape: Ranked, names: tuple[str, ...], timeout: datetime.timedelta
    ) -> DeviceMesh:
        """Returns all ranks in a mesh of that shape; all ranks call it together."""
        grid = torch.arange(math.prod(shape)).reshape(shape)
        groups = [
            self._row_group(grid.movedim(dimension, -1).reshape(-1, size), timeout)
            for dimension, size in enumerate(shape)
        ]
        return DeviceMesh.from_group(groups, self._device.type, mesh=grid, mesh_dim_names=names)

    def _groups(self) -> list[dist.ProcessGroup]:
        return [group for group in (self._group, *self._subgroups.values()) if group is not None]

    def _open(self, ranks: list[int] | None, timeout: datetime.timedelta) -> dist.ProcessGroup:
        device = None if self._device.type == "cpu" else self._device
        opened: dist.ProcessGroup = dist.new_group(
            ranks, timeout, dist.get_backend(), device_id=device
        )
        return opened

    def _row_group(self, rows: torch.Tensor, timeout: datetime.timedelta) -> dist.ProcessGroup:
        """Returns the group of the row with this rank; all ranks open missing groups together."""
        assert self._group is not None
        if rows.shape[1] == self._ranks.world_size:
            return self._group
        own: dist.ProcessGroup | None = None
        for row in map(tuple, rows.tolist()):
            is_member = self._ranks.rank in row
            if row not in self._subgroups:
                opened = self._open(list(row), timeout)
                self._subgroups[row] = opened if is_member else None
                if is_member:
                    _connect(opened, self._device)
            if is_member:
                own = self._subgroups[row]
        assert own is not None
        return own

    def _close_subgroups(self) -> None:
        """Closes the groups of all meshes but that of all ranks; all ranks call it together."""
        groups = [group for group in self._subgroups.values() if group is not None]
        self._subgroups.clear()
        self._meshes.clear()
        for group in groups:
            dist.destroy_process_group(group)
        clear_mesh_caches()

    def abort(self) -> None:
        """Drops all groups, so that waiting peers fail at once; further calls do nothing."""
        groups = self._groups()
        if not groups:
            return
        if self._alarm is not None:
            self._alarm.ring()
        self._abort_all()
        self._group = None
        self._subgroups.clear()
        self._meshes.clear()
        for place in range(len(groups)):
            with contextlib.suppress(RuntimeError, ValueError):  # a broken group may be gone
                dist.destroy_process_group(groups[place])
        clear_mesh_caches()
        gc.collect()
        # Last and from Python, which releases the GIL: the destructor joins gloo's threads, which
        # may wait for it. If a DDP model in a reference cycle held the last reference, both would
        # deadlock.
        while groups:
            groups.pop()

    def _abort_all(self) -> None:
        groups = self._groups()
        with _nccl_group(groups, self._device):
            for place in range(len(groups)):
                with contextlib.suppress(RuntimeError):
                    groups[place].abort()


@contextlib.contextmanager
def _nccl_group(groups: list[dist.ProcessGroup], device: torch.device) -> Iterator[None]:
    """Lets NCCL abort several communicators as one: one after the other can wait for each other.

    Source:
        https://github.com/pytorch/pytorch/issues/119797.
    """
    if not groups or dist.get_backend() != "nccl":
        yield
        return
    backend: Any = groups[0]._get_backend(device)
    backend._group_start()
    try:
        yield
    finally:
        backend._group_end()


def _set_timeout(
    group: dist.ProcessGroup, device: torch.device, timeout: datetime.timedelta
) -> None:
    with contextlib.suppress(RuntimeError):  # backends other than gloo and NCCL may have none
        group._get_backend(device)._set_default_timeout(timeout)


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
