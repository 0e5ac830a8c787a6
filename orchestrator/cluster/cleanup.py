"""Cleanup of what a worker group leaves under Ray: processes on its nodes, and placement groups.

Ray frees a placement group by itself only when its creator and the job are both over. If a
controller of Ray Train dies early, a cleaner actor of Ray frees its group, but only after it has
asked Ray's dashboard about the controller. Without a dashboard, placement group and cleaner stay
until the cluster ends.
"""

import contextlib
import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.placement_group import PlacementGroup, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from orchestrator.cluster.channels import WorkerProcess
from orchestrator.cluster.processes import kill_leftovers
from orchestrator.cluster.ray_private import actors_of_job, is_alive, placement_groups_of
from orchestrator.host import oom_kills

_EXIT_SECONDS = 5.0  # for a process that was told to end
_NODE_SECONDS = 50.0  # for one node to clean up
_DEATH_NOTICE_SECONDS = 10.0  # until Ray notices that a process has ended
_POLL_SECONDS = 0.2
_CONTROLLER = "TrainController"


def session_folder() -> Path | None:
    """Returns Ray's folder for temporary files, or None if this process cannot write to it.

    Use it for files that are worthless once Ray, or the process that wrote them, has ended.
    """
    context = ray.get_runtime_context()
    folder = Path(context.get_temp_dir(), context.get_session_name())
    return folder if os.access(folder, os.W_OK) else None


def end_worker_processes(worker_processes: Sequence[WorkerProcess]) -> tuple[str, ...]:
    """Ends all processes of workers on their nodes, so that they hold no GPU memory any more.

    Returns:
        What is still running, a sentence for each node.
    """
    this_node = ray.get_runtime_context().get_node_id()
    faults: list[str] = []
    for node in sorted({process.node for process in worker_processes}):
        leaders = {
            process.pid: process.started_at for process in worker_processes if process.node == node
        }
        survivors: tuple[int, ...] = ()
        if node == this_node:
            survivors = kill_leftovers(leaders, _EXIT_SECONDS)
        else:
            with contextlib.suppress(RayError):  # a node that is gone has no processes
                reference = _on(node, kill_leftovers).remote(leaders, _EXIT_SECONDS)
                survivors = ray.get(reference, timeout=_NODE_SECONDS)
        if survivors:
            pids = ", ".join(map(str, survivors))
            faults.append(f"processes {pids} on node {node} are still running after SIGKILL")
    return tuple(faults)


def _on(node: str, function: Callable[..., Any]) -> Any:
    """Returns a function as a task that Ray runs on a node, once and without cores."""
    affinity = NodeAffinitySchedulingStrategy(node, soft=False)
    return ray.remote(num_cpus=0, max_retries=0, scheduling_strategy=affinity)(function)


def oom_killed(before: Mapping[str, int]) -> bool:
    """Returns True if the kernel's OOM killer has killed a process on one of these nodes.

    Args:
        before: Kills on each node when counting began, by the node's id.
    """
    for node, count in before.items():
        with contextlib.suppress(RayError):  # a node that is gone cannot answer
            if ray.get(_on(node, oom_kills).remote(), timeout=_NODE_SECONDS) > count:
                return True
    return False


def end_controllers() -> None:
    """Ends controllers of Ray Train that this process started and that hang."""
    this_worker = bytes.fromhex(ray.get_runtime_context().get_worker_id())
    _end_controllers_of({this_worker}, actors_of_job())


def remove_abandoned_placement_groups() -> None:
    """Removes the placement groups of dead controllers of this job."""
    controllers = {
        actor.actor_id
        for actor in actors_of_job()
        if actor.class_name == _CONTROLLER and not is_alive(actor)
    }
    for group in placement_groups_of(controllers):
        remove_placement_group(PlacementGroup(ray.PlacementGroupID(group)))


def clean_up_group(worker_processes: Sequence[WorkerProcess]) -> tuple[str, ...]:
    """Cleans up after the runner of a group has died. Call it on the node where the runner was.

    Ray ends the processes that the runner started within seconds, unless they hang as well.

    Returns:
        What is still running, a sentence for each node.
    """
    actors = actors_of_job()
    dead = {_worker_id(actor.address) for actor in actors if not is_alive(actor)}
    _end_controllers_of(dead, actors)
    faults = end_worker_processes(worker_processes)
    remove_abandoned_placement_groups()
    return faults


def _end_controllers_of(owners: Collection[bytes], actors: Iterable[Any]) -> None:
    """Kills the controllers on this node that these processes started; waits for Ray to notice."""
    this_node = ray.get_runtime_context().get_node_id()
    controllers = {
        actor.actor_id: actor.pid
        for actor in actors
        if actor.class_name == _CONTROLLER
        and is_alive(actor)
        and ray.NodeID(actor.address.node_id).hex() == this_node
        and _worker_id(actor.owner_address) in owners
    }
    # Ray lists them as alive, so that no other process has their ids
    kill_leftovers(dict.fromkeys(controllers.values(), 0.0), 0)
    until = time.monotonic() + _DEATH_NOTICE_SECONDS
    while controllers and time.monotonic() < until:
        time.sleep(_POLL_SECONDS)
        alive = {actor.actor_id for actor in actors_of_job() if is_alive(actor)}
        controllers = {actor: pid for actor, pid in controllers.items() if actor in alive}


def _worker_id(address: Any) -> bytes:
    return bytes(address.worker_id)
