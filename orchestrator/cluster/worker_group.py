"""Groups of warm workers: one `fit()` of Ray Train whose workers run trial after trial.

Workers of Ray Train take seconds to start, while a trial on running workers starts within
milliseconds. So the training function is a loop that takes requests from a channel, and a group
lives until it cannot be trusted any more. Outcomes travel through the channel as well: Ray Train
reports metrics only with checkpoints, and when its controller polls.

No other module but `trainer` uses Ray Train.
"""

import contextlib
import gc
import os
import platform
import re
import shutil
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import psutil
import ray
from ray import cloudpickle
from ray.actor import ActorHandle
from ray.exceptions import GetTimeoutError, OutOfMemoryError, RayActorError, RayError
from ray.train import FailureConfig, RunConfig, TrainingFailedError
from ray.train.v2.api.exceptions import WorkerGroupError

from orchestrator.cluster.channels import GroupChannel, WorkerProcess
from orchestrator.cluster.cleanup import (
    end_controllers,
    end_worker_processes,
    oom_killed,
    remove_abandoned_placement_groups,
    session_folder,
)
from orchestrator.cluster.nodes import ID_LABEL, rank_resources, unreachable_nodes
from orchestrator.cluster.processes import end_with_raylet
from orchestrator.cluster.runtime import WORKER_ENVIRONMENT, missing_variables
from orchestrator.cluster.trainer import LeanTrainer, PlacedRanks, ProcessGroup, this_rank
from orchestrator.core.budget import start_deadline_seconds
from orchestrator.core.failures import (
    Doing,
    GroupFailure,
    announced_failure,
    may_be_node_loss,
    outcome_of_group_failure,
)
from orchestrator.core.inputs import TrialFinished
from orchestrator.core.instructions import Run
from orchestrator.core.placement import Processes
from orchestrator.host import full_folder, host_memory_bytes, oom_kills, package_versions
from search_spaces.hardware.device import BACKENDS
from search_spaces.specification.schema import SweepSpec
from search_spaces.trial import Activity, ActivityKind, Fingerprint, Outcome, TimedOut, TrialRequest

_COLORS = re.compile(r"\x1b\[[0-9;]*m")
_TRACEBACK = ", line "  # File "...", line 7, in f
STOP_SECONDS = 20.0
_POLL_SECONDS = 0.5
_STARTING: Final = "starting"
_RUNNING: Final = "running the trial"
_OOM_KILLED = "the kernel's OOM killer killed a process on its node"
_NO_END = "a rank failed, and the others did not end"
_SILENT = "the actor that forwards its requests does not answer"


def group_failure(error: Exception | None, doing: Doing) -> GroupFailure:
    """Returns the cause of a group's end, as Ray reports it.

    The rank that failed first comes before ranks that failed because of it.

    Args:
        error: Raised by Ray Train; None if it ended without an error.
        doing: What was awaited from the group.
    """
    if error is None:
        return GroupFailure(doing=doing, detail="the workers exited")
    failures = error.worker_failures if isinstance(error, WorkerGroupError) else {}
    causes = {rank: _root_cause(failure) for rank, failure in failures.items()}
    for kind in (OutOfMemoryError, RayActorError, Exception):
        for rank, cause in causes.items():
            if isinstance(cause, kind):
                memory = isinstance(cause, OutOfMemoryError)
                detail = _one_line(cause)
                return GroupFailure(doing=doing, host_memory=memory, rank=rank, detail=detail)
    return GroupFailure(doing=doing, detail=_one_line(error))


def _root_cause(failure: Exception) -> Exception:
    cause = getattr(failure, "health_check_failure", None)  # of a failed health check
    return cause if isinstance(cause, Exception) else failure


def _one_line(error: Exception) -> str:
    plain = _COLORS.sub("", str(error)).strip()
    lines = [line.strip() for line in plain.splitlines() if line.strip()]
    excerpt = [lines[0], lines[-1]] if _TRACEBACK in plain else lines
    return f"{type(error).__name__}: {' '.join(excerpt)[:300]}"


class GroupFailed(Exception):  # an event more than an error
    """The group died or was killed; `outcome` is what that means for its trial.

    `faults` lists what is still running, a sentence each.
    """

    def __init__(self, outcome: Outcome, faults: tuple[str, ...] = ()) -> None:
        super().__init__(outcome)
        self.outcome = outcome
        self.faults = faults


def worker_loop(config: dict[str, Any]) -> None:
    """Runs trials as one rank of a group, until the group is dismissed."""
    from workers.entry import measure_launches, run_trial, warm_up
    from workers.measure.environment import device_properties, environment_of
    from workers.models.function import received
    from workers.models.trust import ALL_MODULES, trust_modules
    from workers.models.user_code import enter_folder
    from workers.worker import Worker, device_name

    enter_folder(config["folder"], config["spec"])
    trust_modules((ALL_MODULES,))  # the driver has asked
    received.update(config["pickles"])
    channel: ActorHandle = config["channel"]
    rank = this_rank().get_world_rank()

    def announce(outcome: Outcome) -> None:
        ray.get(channel.announce.remote(rank, outcome))

    context = ray.get_runtime_context()
    node = context.get_node_id()
    channel.count.remote(node, oom_kills())
    end_with_raylet()
    process = WorkerProcess(
        worker=cloudpickle.dumps(context.current_actor),
        node=node,
        pid=os.getpid(),
        started_at=psutil.Process().create_time(),
    )
    tell, ranks = config["tell"], this_rank().get_world_size()
    up = ray.get(channel.register.remote(process))
    tell(Activity(kind=ActivityKind.STARTING_WORKERS, count=up, most=ranks))
    worker = Worker.start(config["spec"], announce, tell if rank == 0 else lambda _: None)
    launches = measure_launches(config["spec"], worker) if rank == 0 else None
    warm_up(config["spec"], worker)
    gc.enable()
    fingerprint = Fingerprint(
        device=worker.device.type,
        device_name=device_name(worker.device),
        device_memory_bytes=worker.meter.limit_bytes,
        hosts=ranks // this_rank().get_local_world_size(),
        python=platform.python_version(),
        versions=package_versions(),
        environment=environment_of(worker.device, but=config["set_by_plan"]),
        properties=device_properties(worker.device),
        launches=launches,
        host_memory_bytes=host_memory_bytes(),
    )
    ready = ray.get(channel.set_ready.remote(fingerprint))
    tell(Activity(kind=ActivityKind.LOADING_WORKERS, count=ready, most=ranks))
    while (request := ray.get(channel.next.remote(rank))) is not None:
        channel.count.remote(node, oom_kills())
        outcome = run_trial(request, worker)
        if rank == 0:
            ray.get(channel.post.remote(outcome))


class WorkerGroup:
    """Warm workers, one per rank, that run one trial at a time."""

    def __init__(self, run: Run, tell: Callable[[Activity], None]) -> None:
        """Starts the workers that a trial needs, and waits until all are up.

        Relative paths in the spec begin in the trial's folder. Ranks call `tell` with what they do.

        Raises:
            GroupFailed: If there is no space for them, a worker dies, or not all are up after
                `cluster.start_minutes`.
        """
        spec, plan = run.request.spec, run.request.plan
        processes = Processes.of(plan, run.device, run.placement)
        self._folder = _new_folder()
        self._channel = (
            ray.remote(GroupChannel)
            .options(num_cpus=0, max_concurrency=1000)
            .remote(processes.world_size)
        )
        self._ended = threading.Event()
        self._error: Exception | None = None
        self.worker_processes: Sequence[WorkerProcess] = ()  # of the ranks, once they are up
        tell(Activity(kind=ActivityKind.STARTING_WORKERS, count=0, most=processes.world_size))
        file = spec.model.pickle  # which a node may not see
        config = {
            "channel": self._channel,
            "folder": run.folder,
            "set_by_plan": tuple(name for name, _ in processes.environment),
            "tell": tell,
            "pickles": {file: Path(file).read_bytes()} if file else {},
        }
        trainer = trainer_of(spec, processes, run.device, self._folder, config)
        threading.Thread(target=self._fit, args=(trainer,), daemon=True).start()
        members = self._wait(
            self._channel.members.remote(), start_deadline_seconds(spec), _STARTING
        )
        with_launches = (member for member in members if member.launches is not None)
        self.fingerprint: Fingerprint = next(with_launches, members[0])
        self.worker_processes = self._ask(self._channel.worker_processes.remote()) or ()

    def run(self, request: TrialRequest, deadline_seconds: float) -> Outcome:
        """Runs a trial on all ranks.

        Raises:
            GroupFailed: If a worker dies, the deadline passes, or a rank fails and the others wait
                for it; holds the outcome.
        """
        outcome: Outcome | None = self._wait(
            self._channel.run.remote(request), deadline_seconds, _RUNNING
        )
        if outcome is None:
            raise self._killed(GroupFailure(doing=_RUNNING, detail=_NO_END), {})
        return outcome

    def stop(self) -> None:
        """Dismisses the workers, and kills those that are still there after `STOP_SECONDS`."""
        if not self._ended.is_set():
            with contextlib.suppress(RayError):
                ray.get(self._channel.dismiss.remote(), timeout=_POLL_SECONDS)
            self._ended.wait(STOP_SECONDS)
        self.kill()

    def kill(self) -> tuple[str, ...]:
        """Kills the workers, and waits for their processes and the training run to end.

        Returns:
            What is still running, a sentence each.
        """
        self.worker_processes = (
            self.worker_processes or self._ask(self._channel.worker_processes.remote()) or ()
        )
        if not self._ended.is_set():
            for process in self.worker_processes:
                ray.kill(cloudpickle.loads(process.worker))
            if not self._ended.wait(STOP_SECONDS):  # Ray Train itself hangs
                end_controllers()
                self._ended.wait(STOP_SECONDS)
        ray.kill(self._channel)
        faults = end_worker_processes(self.worker_processes)
        remove_abandoned_placement_groups()
        shutil.rmtree(self._folder, ignore_errors=True)
        return faults

    def _fit(self, trainer: LeanTrainer) -> None:
        try:
            trainer.fit()
        except (TrainingFailedError, RayError) as error:
            self._error = error
        finally:
            self._ended.set()

    def _wait(self, reference: Any, seconds: float, doing: Doing) -> Any:
        until = time.monotonic() + seconds
        while not self._ended.is_set():
            try:
                return ray.get(reference, timeout=min(_POLL_SECONDS, seconds))
            except GetTimeoutError:
                if time.monotonic() > until:
                    late = TimedOut(deadline_seconds=seconds, detail=f"{doing} did not finish")
                    raise self._timed_out(late, doing) from None
            except RayError as error:
                self._ended.wait(STOP_SECONDS)  # Ray Train sees the same error in the ranks
                self._error = self._error or error
                break
        kills_before = self._ask(self._channel.oom_kills.remote()) or {}
        raise self._killed(group_failure(self._error, doing), kills_before)

    def _killed(self, failure: GroupFailure, kills_before: Mapping[str, int]) -> GroupFailed:
        """Kills the group, and returns what the failure means with what ranks announced."""
        # the channel may have been on a lost node
        announced = self._ask(self._channel.announced.remote()) or []
        faults = self.kill()
        if not failure.host_memory and oom_killed(kills_before):
            detail = f"{_OOM_KILLED}: {failure.detail}"
            failure = replace(failure, host_memory=True, detail=detail)
        return GroupFailed(outcome_of_group_failure(failure, tuple(announced)), faults)

    def _timed_out(self, outcome: TimedOut, doing: Doing) -> GroupFailed:
        """Kills the group. Blames the trial only if one ran and the channel answers."""
        announced = self._ask(self._channel.announced.remote())
        if announced is not None and doing == _RUNNING:
            return GroupFailed(announced_failure(announced) or outcome, self.kill())
        late = f"{outcome.detail} within {outcome.deadline_seconds:.0f} s"
        detail = _SILENT if announced is None else late
        failure = GroupFailure(doing=doing, detail=detail)
        return GroupFailed(outcome_of_group_failure(failure), self.kill())

    def _ask(self, reference: Any) -> Any:
        try:
            return ray.get(reference, timeout=STOP_SECONDS)
        except RayError:
            return None


def _new_folder() -> str:
    """Returns a new folder for a group's files, where there is space for them."""
    parent = session_folder() or Path(tempfile.gettempdir())
    problem = full_folder(parent)
    if problem is None:
        try:
            return tempfile.mkdtemp(prefix="plimsoll-group-", dir=parent)
        except OSError as error:
            problem = f"{parent}: {error.strerror}"
    raise GroupFailed(outcome_of_group_failure(GroupFailure(doing=_STARTING, detail=problem)))


def trainer_of(
    spec: SweepSpec, processes: Processes, device: str, folder: str, config: dict[str, Any]
) -> LeanTrainer:
    """Returns the training run of a group.

    Args:
        spec: The sweep's specification. Workers get it with the device that the driver settled:
            for `auto`, torch in a worker may see what Ray was not told of, such as a GPU that all
            ranks would share.
        processes: Number, nodes and environment of the workers.
        device: "cpu", "cuda" or "tpu".
        folder: The run's own folder.
        config: Other arguments of `worker_loop`.
    """
    cluster = spec.cluster.model_copy(update={"device": device})
    environment = WORKER_ENVIRONMENT | dict(processes.environment)
    return LeanTrainer(
        worker_loop,
        train_loop_config=config | {"spec": spec.model_copy(update={"cluster": cluster})},
        backend_config=ProcessGroup(BACKENDS[device]),
        scaling_config=PlacedRanks(
            num_workers=processes.world_size,
            use_gpu=device == "cuda",
            resources_per_worker=rank_resources(device, spec.cluster.cpus_per_worker),
            label_selector=_selectors(processes),
        ),
        run_config=RunConfig(
            name=f"plimsoll-group-{uuid.uuid4().hex[:8]}",
            storage_path=folder,
            failure_config=FailureConfig(max_failures=0, controller_failure_limit=1),
            worker_runtime_env={"env_vars": missing_variables(environment)},
        ),
    )


def _selectors(processes: Processes) -> list[dict[str, str]] | None:
    if processes.placement is None:
        return None
    return [{ID_LABEL: node} for node in processes.placement.node_of_rank]


class WarmGroup:
    """Runs one trial after the other on a worker group, which it replaces when it is told to."""

    def __init__(self, tell: Callable[[Activity], None]) -> None:
        """Starts without workers: the first trial determines how many it needs."""
        self._tell = tell
        self._group: WorkerGroup | None = None

    @property
    def worker_processes(self) -> Sequence[WorkerProcess]:
        """Processes of the workers; empty without workers."""
        return self._group.worker_processes if self._group else ()

    def run(self, run: Run) -> TrialFinished:
        """Runs a trial, after starting the workers that it needs unless they are up."""
        started_at, began = time.time(), time.monotonic()
        fingerprint: Fingerprint | None = None
        lost_nodes: tuple[str, ...] = ()
        faults: tuple[str, ...] = ()
        workers_seconds: float | None = None
        try:
            group = self._group_for(run)
            workers_seconds = time.monotonic() - began
            fingerprint = group.fingerprint
            outcome = group.run(run.request, run.deadline_seconds)
        except GroupFailed as failed:
            outcome, faults, self._group = failed.outcome, failed.faults, None
            if may_be_node_loss(outcome):
                lost_nodes = unreachable_nodes(run.addresses)
        seconds = time.monotonic() - began
        return TrialFinished(
            group=run.group,
            number=run.request.number,
            validation=run.request.validation,
            outcome=outcome,
            fingerprint=fingerprint,
            started_at=started_at,
            ended_at=started_at + seconds,
            workers_seconds=seconds if workers_seconds is None else workers_seconds,
            workers_ended=self._group is None,
            lost_nodes=lost_nodes,
            faults=faults,
        )

    def stop(self) -> None:
        """Stops the workers."""
        if self._group is not None:
            self._group.stop()
            self._group = None

    def _group_for(self, run: Run) -> WorkerGroup:
        if run.fresh:
            self.stop()
        if self._group is None:
            self._group = WorkerGroup(run, self._tell)
        return self._group
