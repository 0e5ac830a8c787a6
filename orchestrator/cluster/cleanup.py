"""What a group leaves behind under Ray when it ends: processes on its nodes, rooms.

Ray frees a placement group by itself only if its creator and the job are both over. Where a
controller of Ray Train dies in mid-life, an actor of its own frees it, which asks Ray's dashboard
whether the controller lives: where none runs, room and actor stay until the cluster ends.

Ray has no public way to ask for any of this without its dashboard; this uses its client of the
GCS.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.placement_group import PlacementGroup, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from orchestrator.cluster.channels import Seat
from orchestrator.host import end_leftovers, oom_kills, unreleased

_LEAVE_SECONDS = 5.0  # in which a process that was told to end ends by itself
_RELEASE_SECONDS = 15.0  # in which a driver has the memory back of a process that is gone
_NODE_SECONDS = 50.0  # for a node to end what it has of them
_KNOWN_SECONDS = 10.0  # until Ray knows that a process is gone
_POLL_SECONDS = 0.2
_CONTROLLER = "TrainController"


def session_folder() -> Path | None:
    """Where Ray keeps what is of no use when it has ended; None if that cannot be written.

    For files that are of no use either when the process is gone which made them.
    """
    context = ray.get_runtime_context()
    folder = Path(context.get_temp_dir(), context.get_session_name())
    return folder if os.access(folder, os.W_OK) else None


def end_on_nodes(seats: Sequence[Seat]) -> tuple[str, ...]:
    """Sees to it, on each node, that no process of workers is left, and nothing on its GPUs.

    Returns:
        What does not end or come back, a sentence each.
    """
    here = ray.get_runtime_context().get_node_id()
    told = []
    for node in sorted({seat.node for seat in seats}):
        leaders = [seat.pid for seat in seats if seat.node == node]
        devices = dict(pair for seat in seats if seat.node == node for pair in seat.devices)
        left: tuple[int, ...] = ()
        held: tuple[str, ...] = ()
        if node == here:
            left, held = _clear(leaders, devices)
        else:
            there = NodeAffinitySchedulingStrategy(node, soft=False)
            task = ray.remote(num_cpus=0, max_retries=0, scheduling_strategy=there)(_clear)
            with contextlib.suppress(RayError):  # a node that is gone has no processes
                left, held = ray.get(task.remote(leaders, devices), timeout=_NODE_SECONDS)
        if left:
            pids = ", ".join(map(str, left))
            told.append(f"processes {pids} on node {node} do not end, though they were killed")
        told += held
    return tuple(told)


def _clear(
    leaders: Sequence[int], devices: Mapping[str, int]
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """On the node itself: processes that do not end, and what their GPUs do not have back."""
    return end_leftovers(leaders, _LEAVE_SECONDS), unreleased(devices, _RELEASE_SECONDS)


def oom_killed(before: Mapping[str, int]) -> bool:
    """Whether the kernel's OOM killer struck on one of these nodes since it was counted there."""
    asked = ray.remote(num_cpus=0, max_retries=0)(oom_kills)
    for node, count in before.items():
        there = NodeAffinitySchedulingStrategy(node, soft=False)
        with contextlib.suppress(RayError):  # a node that is gone tells nothing
            now = ray.get(asked.options(scheduling_strategy=there).remote(), timeout=_NODE_SECONDS)
            if now > count:
                return True
    return False


def end_controllers() -> None:
    """Ends the controllers of Ray Train that this process started and that do not end."""
    me = bytes.fromhex(ray.get_runtime_context().get_worker_id())
    _end_controllers_of({me}, _actors())


def free_abandoned() -> None:
    """Frees the room that dead controllers of this job hold."""
    from ray._private.state import state
    from ray.core.generated.gcs_pb2 import PlacementGroupTableData

    dead = [a for a in _actors() if a.class_name == _CONTROLLER and not _is_alive(a)]
    ids = {actor.actor_id for actor in dead}
    for row in state._connect_and_get_accessor().get_placement_group_table():
        group = PlacementGroupTableData.FromString(row)
        if group.creator_actor_id in ids and group.state != PlacementGroupTableData.REMOVED:
            remove_placement_group(PlacementGroup(ray.PlacementGroupID(group.placement_group_id)))


def clean_up_group(seats: Sequence[Seat]) -> tuple[str, ...]:
    """Ends what the actor left that ran a group's trials, and frees its room.

    For the node where that actor ran. Ray ends what it started by itself, in some seconds, unless
    that hangs as well.

    Args:
        seats: Of its workers.

    Returns:
        What does not end, a sentence each.
    """
    actors = _actors()
    dead = {_worker(actor.address) for actor in actors if not _is_alive(actor)}
    _end_controllers_of(dead, actors)
    told = end_on_nodes(seats)
    free_abandoned()
    return told


def _actors() -> list[Any]:
    """`ActorTableData` of all actors of this job, dead ones too."""
    from ray._private.state import state
    from ray.core.generated.gcs_pb2 import ActorTableData

    job = ray.JobID.from_hex(ray.get_runtime_context().get_job_id())
    rows = state._connect_and_get_accessor().get_actor_table(job, None)
    return [ActorTableData.FromString(row) for row in rows]


def _is_alive(actor: Any) -> bool:
    from ray.core.generated.gcs_pb2 import ActorTableData

    return bool(actor.state != ActorTableData.DEAD)


def _end_controllers_of(owners: Collection[bytes], actors: Iterable[Any]) -> None:
    """Kills controllers on this node that such processes started; waits until Ray knows."""
    here = ray.get_runtime_context().get_node_id()
    ended = [
        actor
        for actor in actors
        if actor.class_name == _CONTROLLER
        and _is_alive(actor)
        and ray.NodeID(actor.address.node_id).hex() == here
        and _worker(actor.owner_address) in owners
    ]
    if not ended:
        return
    end_leftovers([actor.pid for actor in ended], 0)
    ids = {actor.actor_id for actor in ended}
    until = time.monotonic() + _KNOWN_SECONDS
    while any(a.actor_id in ids and _is_alive(a) for a in _actors()) and time.monotonic() < until:
        time.sleep(_POLL_SECONDS)


def _worker(address: Any) -> bytes:
    """The id of the process that an address is of."""
    return bytes(address.worker_id)
