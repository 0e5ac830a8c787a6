"""The Ray cluster of a sweep: joined if there is one, else started on this machine."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import gettempdir
from typing import Any

from orchestrator.cluster.nodes import RayNodes, await_room
from orchestrator.core.placement import Node, on_kind
from search_spaces.errors import ClusterError, require
from search_spaces.facts import ClusterFacts, split_by_accelerator
from search_spaces.spec.schema import SweepSpec

# Read by Ray when it is imported or started, so they have to stand in the environment before.
_SETTINGS = {
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",  # a dead worker is noticed after that
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "120",
    "RAY_TRAIN_ENABLE_STATE_TRACKING": "0",
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",  # a process a group, for checkpoints we do not make
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_worker_niceness": "0",  # Ray's 15 starves workers beside anything that computes
    "RAY_DEDUP_LOGS": "0",
    "RAY_COLOR_PREFIX": "0",  # what Ray says of a dead worker goes into logs too
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # the study and MLflow hold what they would write
    "TUNE_GLOBAL_CHECKPOINT_S": "3600",  # the study is what a sweep resumes from
    "TUNE_RESULT_BUFFER_LENGTH": "0",
    "RAY_AIR_NEW_OUTPUT": "0",  # the old output has a mode that prints nothing
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # Ctrl-C is ours: it ends the sweep, with its report
}
WORKER_ENVIRONMENT = {
    # One heap for all threads: glibc tries another when one is full, and what a trial that ran out
    # of memory left in that does not come back.
    "MALLOC_ARENA_MAX": "1",
    # What is measured has the priority that the user's own training will have. Ray starts workers
    # with 15, where anything else that computes on the node leaves them 3 % of its cores.
    "RAY_worker_niceness": "0",
}
_HEAD = {
    # Ray's head lists 100,000 tasks unless it is told otherwise: 42 MiB after a thousand trials.
    "RAY_task_events_max_num_task_in_gcs": "10000",
}
_OWN = "PLIMSOLL_OWN_RAY"
RAY_LOGS_VARIABLE = "PLIMSOLL_RAY_LOGS"  # set by --debug
_OBJECT_STORE_BYTES = 100 * 2**20  # only requests and outcomes travel through it
_KNOCK_SECONDS = 5.0
_SURVEY_SECONDS = 120.0
_TOKEN_FILE = Path("~/.ray/auth_token")


def settle_ray() -> None:
    """Says how Ray is to behave, before it is imported; what the user has set stays."""
    os.environ.pop(_OWN, None)
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)


def settle_own_ray() -> None:
    """Says it to a Ray that this process is about to start, and to all processes of that."""
    settle_ray()
    for name, value in (WORKER_ENVIRONMENT | _HEAD).items():
        os.environ.setdefault(name, value)
    os.environ[_OWN] = "1"


def shows_ray_logs() -> bool:
    """Tells whether Ray's own messages and those of its workers are shown."""
    return RAY_LOGS_VARIABLE in os.environ


def is_own_ray() -> bool:
    """Whether this process and all others of its Ray have the environment of a driver of ours."""
    return _OWN in os.environ


def to_hand_over(wanted: Mapping[str, str]) -> dict[str, str]:
    """What of an environment a process has to be handed, because it would not have it."""
    if not is_own_ray():
        return dict(wanted)
    return {name: value for name, value in wanted.items() if os.environ.get(name) != value}


def settle_token() -> None:
    """Lets a token be sent that is set or lies in the home directory: only if the mode says so."""
    if os.environ.get("RAY_AUTH_TOKEN") or _TOKEN_FILE.expanduser().exists():
        os.environ.setdefault("RAY_AUTH_MODE", "token")


def keep_token() -> None:
    """Lets nobody else read the token in the home directory, which Ray makes for all to read."""
    with contextlib.suppress(OSError):  # there is none, or it is another's
        _TOKEN_FILE.expanduser().chmod(0o600)


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """A cluster that this process is connected to: what it offers, and its nodes."""

    facts: ClusterFacts
    nodes: RayNodes


@contextlib.contextmanager
def connected(spec: SweepSpec) -> Iterator[Joined]:
    """A connection to Ray while the context is open; nodes that it wanted may go when it closes.

    Joins `cluster.address`, or the cluster whose job this is; else starts Ray on this machine,
    listening to whoever has the token that Ray keeps in the home directory.

    Raises:
        ClusterError: If the cluster cannot be reached or offers no CUDA where it is asked for.
        MissingExtraError: If Ray is not installed.
    """
    require("ray")
    address = spec.cluster.address or os.environ.get("RAY_ADDRESS")
    settle_ray()
    if address:
        _knock(address)
        settle_token()
    import ray

    mine = not ray.is_initialized()
    if mine:
        _connect(ray, address)
        keep_token()
    nodes, here = None, mine and address is None
    try:
        device = _device(ray, spec)
        nodes = RayNodes(
            device,
            spec.cluster.cpus_per_worker,
            spec.cluster.accelerators,
            joined=address is not None,
        )
        if address is not None:
            await_room(nodes, spec, lambda text: print(text, file=sys.stderr))  # noqa: T201
        facts = _facts(device, nodes, spec)
        lacks = _survey(device) if here else _ask(ray, device)
        yield Joined(facts=replace(facts, lacks=lacks), nodes=nodes)
    finally:
        if nodes is not None:
            nodes.close()
        if mine:
            ray.shutdown()


def _connect(ray: Any, address: str | None) -> None:
    shown = shows_ray_logs()
    logs = {"log_to_driver": shown, "logging_level": "INFO" if shown else "ERROR"}
    try:
        if address is None:
            settle_own_ray()
            ray.init(include_dashboard=False, object_store_memory=_OBJECT_STORE_BYTES, **logs)
        else:
            ray.init(address=address, **logs)
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        if address is not None:
            told = f"cluster.address is {address}: no Ray cluster answers there ({reason})"
        else:
            told = f"Ray does not start on this machine: {reason}"
            if "AF_UNIX" in reason:  # the one limit on paths that a user runs into
                told += f"; set RAY_TMPDIR to a short folder, as /tmp, in place of {gettempdir()}"
        raise ClusterError(told) from error


def _knock(address: str) -> None:
    """Tries the port, since Ray waits for minutes where nothing listens."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not port.isdigit():
        return  # auto, or local
    try:
        socket.create_connection((host, int(port)), timeout=_KNOCK_SECONDS).close()
    except OSError as error:
        reason = error.strerror or str(error)
        raise ClusterError(
            f"cluster.address is {address}: no Ray cluster answers there ({reason})"
        ) from error


def _device(ray: Any, spec: SweepSpec) -> str:
    gpus = any(node["Resources"].get("GPU") for node in ray.nodes() if node["Alive"])
    wanted = spec.cluster.device
    if wanted == "cuda" and not gpus and not spec.cluster.wait_minutes:
        raise ClusterError("cluster.device is cuda, but no node of the Ray cluster has a GPU")
    return "cuda" if wanted == "cuda" or (wanted == "auto" and gpus) else "cpu"


def _facts(device: str, found: RayNodes, spec: SweepSpec) -> ClusterFacts:
    nodes = found.up()
    if not nodes and spec.cluster.accelerators:
        there = sorted({node.kind for node in found.all_up()} - {""})
        raise ClusterError(
            f"cluster.accelerators is {', '.join(spec.cluster.accelerators)}, and the Ray cluster"
            f" has {', '.join(there) or 'no node that is labelled'}: take what its nodes have as"
            " ray.io/accelerator-type"
        )
    if not nodes and device == "cuda":
        raise ClusterError("cluster.device is cuda, but no node of the Ray cluster has a GPU")
    if not nodes:
        raise ClusterError(
            f"no node has room for a worker of {spec.cluster.cpus_per_worker} CPU cores;"
            " lower cluster.cpus_per_worker, or say how many ranks there are to be"
            " (cluster.workers): an autoscaler is asked for them"
        )
    slots, node_slots = _room(nodes)
    facts = ClusterFacts(
        device=device,
        slots=slots,
        memory_limit_bytes=spec.memory_limit_bytes,
        node_slots=node_slots,
    )
    return split_by_accelerator(facts, spec, lambda kind: _room(on_kind(nodes, kind)))


def _room(nodes: Sequence[Node]) -> tuple[int, int]:
    """Ranks that there is room for: on all nodes, and on the largest."""
    slots = [node.slots for node in nodes]
    return sum(slots), max(slots, default=0)


def _ask(ray: Any, device: str) -> tuple[tuple[str, str], ...]:
    """What the cluster's machines cannot do, asked where a worker would run.

    On CUDA that is a node with a GPU, which the driver's own may not have. One answer stands for
    all nodes.

    Raises:
        ClusterError: If no node answers in time.
    """
    asked = ray.remote(_survey).options(num_cpus=1, num_gpus=int(device == "cuda"))
    try:
        found: tuple[tuple[str, str], ...] = ray.get(asked.remote(device), timeout=_SURVEY_SECONDS)
    except ray.exceptions.GetTimeoutError as error:
        raise ClusterError(
            f"no node said within {_SURVEY_SECONDS:.0f} s what it can do: are its {device}"
            " workers busy with another job?"
        ) from error
    return found


def _survey(device: str) -> tuple[tuple[str, str], ...]:
    from workers.probe.doctor import lacks

    return lacks(device)
