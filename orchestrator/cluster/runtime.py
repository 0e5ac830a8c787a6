"""Connection of a sweep to Ray: joins a cluster, or starts Ray on this machine."""

import contextlib
import importlib
import json
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import psutil

from orchestrator.cluster import ray_private
from orchestrator.cluster.nodes import RayNodes, await_room
from orchestrator.cluster.processes import adopting_orphans
from orchestrator.cluster.ray_private import named_code_alone, on_loopback
from orchestrator.cluster.watchdog import Watchdog
from orchestrator.host import kill_all
from search_spaces.errors import ClusterError, MachineError, require
from search_spaces.facts import NO_DEVICE, ClusterFacts
from search_spaces.hardware.device import RESOURCES
from search_spaces.safety.files import packaged_table, private_folder
from search_spaces.specification.schema import SweepSpec
from search_spaces.trial import Activity, ActivityKind
from workers.models.isolation import run_apart

# Ray reads them when it is imported or started, so they must be in the environment before.
_ENVIRONMENTS = packaged_table(__package__, "environments.yaml")
WORKER_ENVIRONMENT: dict[str, str] = _ENVIRONMENTS["workers"]
_OWN = "PLIMSOLL_OWN_RAY"
RAY_LOGS_VARIABLE = "PLIMSOLL_RAY_LOGS"  # set by --debug
_OBJECT_STORE_BYTES = 100 * 2**20  # only requests and outcomes travel through it
_CONNECT_SECONDS = 5.0
_PROBE_SECONDS = 600.0  # a busy machine takes minutes to import torch in a new process
_SHUTDOWN_SECONDS = 30.0
_LEFT_SECONDS = 5.0  # in which a raylet's workers end after it
_KILL_SECONDS = 5.0  # in which a process that is killed ends
_TOKEN_FILE = Path("~/.ray/auth_token")


def configure_ray() -> None:
    """Configures Ray through the environment, before it is imported; the user's settings stay."""
    os.environ.pop(_OWN, None)
    for name, value in _ENVIRONMENTS["driver"].items():
        os.environ.setdefault(name, value)


def configure_own_ray() -> None:
    """Configures a Ray that this process is about to start, and all its processes."""
    configure_ray()
    for name, value in WORKER_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    os.environ[_OWN] = "1"


def ray_logs_enabled() -> bool:
    """Returns True if messages of Ray and of its workers are shown."""
    return RAY_LOGS_VARIABLE in os.environ


def own_head() -> psutil.Process | None:
    """Returns the process of Ray's head that this process started, or None on other clusters."""
    if not is_own_ray():
        return None
    children = psutil.Process().children()
    return next((child for child in children if child.name() == "gcs_server"), None)


def is_own_ray() -> bool:
    """Returns True if a Plimsoll driver started this Ray: all processes share its environment."""
    return _OWN in os.environ


def missing_variables(wanted: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables that a new process has to be handed, as it would not inherit them."""
    if not is_own_ray():
        return dict(wanted)
    return {name: value for name, value in wanted.items() if os.environ.get(name) != value}


def enable_token_auth() -> None:
    """Turns on token authentication if a token is set or lies in the home directory."""
    if os.environ.get("RAY_AUTH_TOKEN") or _TOKEN_FILE.expanduser().exists():
        os.environ.setdefault("RAY_AUTH_MODE", "token")


def ray_folder() -> Path:
    """Returns a folder for Ray's sessions that other users cannot enter; makes it if necessary.

    Ray lets everybody change its folder and all that is in it, so that it has to be below one that
    only its user can enter.

    Raises:
        OSError: If it cannot be made, or somebody else made it.
    """
    folder = Path(os.environ.get("RAY_TMPDIR") or gettempdir(), f"ray-{os.getuid()}")
    return private_folder(folder, "set RAY_TMPDIR to a folder of yours")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectedCluster:
    """Cluster that this process is connected to."""

    facts: ClusterFacts
    nodes: RayNodes
    watchdog: Watchdog  # ends this process if the head of a Ray of its own dies


def cluster_address(spec: SweepSpec) -> str | None:
    """Returns the address of the Ray that a sweep joins; None if it starts its own, here."""
    return spec.cluster.address or os.environ.get("RAY_ADDRESS")


@contextlib.contextmanager
def connected(
    spec: SweepSpec, show: Callable[[Activity], None] = lambda _: None
) -> Iterator[ConnectedCluster]:
    """Connects to Ray while the context is open. Requested nodes may go when it closes.

    Joins `cluster.address`, or the cluster whose job this is. Without either, starts Ray on this
    machine; that Ray accepts clients with the token that it keeps in the home directory.
    `show` receives what is done.

    Raises:
        ClusterError: If the cluster cannot be reached, or the spec requires CUDA and it has none.
        MissingExtraError: If Ray is not installed.
    """
    require("ray")
    address = cluster_address(spec)
    show(Activity(kind=ActivityKind.JOINING_RAY if address else ActivityKind.STARTING_RAY))
    configure_ray()
    if address:
        _check_reachable(address)
        enable_token_auth()
    import ray

    is_local = address is None
    watchdog = Watchdog(os.EX_TEMPFAIL, own_head)
    with contextlib.ExitStack() as stack:
        stack.callback(watchdog.stop)
        if not ray.is_initialized():
            stack.enter_context(_connection(ray, address, watchdog.stop))
        device = _device(ray, spec)
        nodes = RayNodes(device, spec.cluster, joined=not is_local)
        try:
            if not is_local:
                await_room(nodes, spec, lambda text: print(text, file=sys.stderr))  # noqa: T201
            facts = _facts(device, nodes, spec)
            facts = replace(facts, lacks=_lacks_of_nodes(ray, device, is_local=is_local))
            yield ConnectedCluster(facts=facts, nodes=nodes, watchdog=watchdog)
        finally:
            nodes.close()


@contextlib.contextmanager
def _connection(ray: Any, address: str | None, before_end: Callable[[], None]) -> Iterator[None]:
    """Holds a connection to Ray. Of a Ray that starts here, no process is left afterwards.

    Workers and agents end with their raylet. Left alone, a worker that hangs then would stay, and
    so would an agent whose raylet ended while both started.
    """
    with contextlib.ExitStack() as stack:
        if address is None:
            stack.enter_context(adopting_orphans())
        try:
            _connect(ray, address)
        except BaseException:
            before_end()
            _end_own_processes(ray)
            raise
        with contextlib.suppress(OSError):  # no such file, or another owner
            _TOKEN_FILE.expanduser().chmod(0o600)  # Ray writes it readable by all users
        try:
            yield
        finally:
            before_end()
            _disconnect(ray)
            _end_own_processes(ray, _LEFT_SECONDS)


def _disconnect(ray: Any) -> None:
    """Disconnects; ends the processes of a Ray that does not end by itself."""
    has_shut_down = threading.Event()

    def shut_down() -> None:
        with contextlib.suppress(OSError):  # a full disk, where it makes a folder first
            ray.shutdown()
            has_shut_down.set()

    ending = threading.Thread(target=shut_down, daemon=True)
    ending.start()
    ending.join(_SHUTDOWN_SECONDS)
    if not has_shut_down.is_set():
        ray_private.forget_shutdown()
        kill_all(_own_processes(ray))  # others are of a user's program


def _end_own_processes(ray: Any, patience_seconds: float = 0.0) -> None:
    """Waits for the processes of a Ray of our own to end, then kills those that are left."""
    psutil.wait_procs(_own_processes(ray), timeout=patience_seconds)
    left = _own_processes(ray)  # also those that were started meanwhile
    kill_all(left)
    psutil.wait_procs(left, timeout=_KILL_SECONDS)


def _own_processes(ray: Any) -> list[psutil.Process]:
    """Returns the processes of a Ray of our own, with what they started, that have not ended."""
    if not is_own_ray():
        return []
    programs = f"{Path(ray.__file__).parent}{os.sep}"
    found: list[psutil.Process] = []
    for head in psutil.Process().children():
        if _is_of_ray(head, programs):
            found.append(head)
            with contextlib.suppress(psutil.Error):  # it has just ended, and others may not have
                found += head.children(recursive=True)
    return found


def _is_of_ray(process: psutil.Process, programs: str) -> bool:
    """Returns True for Ray's programs, by folder, and for workers and agents, by their titles.

    A process that has ended, and was not waited for, has neither. One of the user's may name Ray's
    folder in a longer argument, as a server that forks for multiprocessing does.
    """
    with contextlib.suppress(psutil.Error):
        words = process.cmdline()
        return bool(words) and (
            words[0].startswith("ray::") or any(word.startswith(programs) for word in words)
        )
    return False


def _connect(ray: Any, address: str | None) -> None:
    verbose = ray_logs_enabled()
    logs = {"log_to_driver": verbose, "logging_level": "INFO" if verbose else "ERROR"}
    try:
        if address is None:
            configure_own_ray()
            with on_loopback(), named_code_alone() as job:
                ray.init(
                    job_config=job,
                    include_dashboard=False,
                    object_store_memory=_OBJECT_STORE_BYTES,
                    _temp_dir=str(ray_folder() / "r"),  # paths of sockets have to be short
                    **logs,
                )
        else:
            with named_code_alone() as job:
                ray.init(address=address, job_config=job, **logs)
    except SystemExit:  # how Ray's own handler takes SIGTERM
        raise KeyboardInterrupt from None
    except Exception as error:  # Ray raises just this if its raylet does not start in time
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        if address is not None:
            message = f"cluster.address is {address}: no Ray cluster answers there ({reason})"
            raise ClusterError(message) from error
        message = f"Ray does not start on this machine: {reason}"
        if "AF_UNIX" in reason:  # the path of Ray's sockets is too long
            message += f"; set RAY_TMPDIR to a short path such as /tmp; it is {gettempdir()}"
            raise ClusterError(message) from error
        message += "; see if it has room, memory, open files and processes left"
        raise MachineError(message) from error


def _check_reachable(address: str) -> None:
    """Connects to the port once: Ray waits for minutes if nothing listens there."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not port.isdigit():
        return  # auto, or local
    try:
        socket.create_connection((host, int(port)), timeout=_CONNECT_SECONDS).close()
    except OSError as error:
        reason = error.strerror or str(error)
        raise ClusterError(
            f"cluster.address is {address}: no Ray cluster answers there ({reason})"
        ) from error


def _device(ray: Any, spec: SweepSpec) -> str:
    requested = spec.cluster.device
    wanted = "cuda" if requested == "auto" else requested
    resources = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if wanted in RESOURCES and not any(each.get(RESOURCES[wanted]) for each in resources):
        if requested == "auto":
            return "cpu"
        if not spec.cluster.wait_minutes:
            raise _no_node_has(wanted)
    return wanted


def _no_node_has(device: str) -> ClusterError:
    return ClusterError(
        f"cluster.device is {device}, but no node of the Ray cluster has a {RESOURCES[device]}"
    )


def _facts(device: str, cluster: RayNodes, spec: SweepSpec) -> ClusterFacts:
    nodes = cluster.up()
    if not nodes and spec.cluster.accelerator:
        kinds = sorted({node.kind for node in cluster.all_up()} - {""})
        raise ClusterError(
            f"cluster.accelerator is {spec.cluster.accelerator}, but the Ray cluster has"
            f" {', '.join(kinds) or 'no labelled node'}: name the accelerator as its nodes' labels"
            " ray.io/accelerator-type do"
        )
    if not nodes and device in RESOURCES:
        raise _no_node_has(device)
    if not nodes:
        raise ClusterError(
            f"no node has room for a worker with {spec.cluster.cpus_per_worker} CPU cores: lower"
            " cluster.cpus_per_worker, or set cluster.workers, the number of ranks, to request"
            " nodes from an autoscaler"
        )
    return ClusterFacts(
        device=device,
        slots=sum(node.slots for node in nodes),
        memory_limit_bytes=spec.memory_limit_bytes,
        node_slots=max(node.slots for node in nodes),
    )


def _lacks_of_nodes(ray: Any, device: str, *, is_local: bool) -> tuple[tuple[str, str], ...]:
    """Returns what the cluster's nodes lack, as one node reports where a worker would run.

    For GPUs it is a node with one, which the driver's node may not have. On this machine's CPU
    the process that describes models has loaded all that it takes.
    """
    if is_local and device == "cpu":
        importlib.import_module("ray.tune")  # needed later, and the model is still described
        return tuple(map(tuple, json.loads(run_apart(_lacks, device, _PROBE_SECONDS))))
    resources = {"resources": {"TPU": 1}} if device == "tpu" else {"num_gpus": int(device != "cpu")}
    task = ray.remote(_lacks).options(num_cpus=1, **resources)
    reference = task.remote(device)
    try:
        lacks = tuple(map(tuple, json.loads(ray.get(reference, timeout=_PROBE_SECONDS))))
    except ray.exceptions.GetTimeoutError as error:
        raise MachineError(
            f"no node reported its capabilities within {_PROBE_SECONDS:.0f} s: is another job using"
            f" its {device} workers?"
        ) from error
    if reason := dict(lacks).get(NO_DEVICE):
        raise ClusterError(f"cluster.device is {device}, but {reason}")
    return lacks


def _lacks(device: str) -> bytes:
    from workers.probe.doctor import lacks

    return json.dumps(lacks(device)).encode()
