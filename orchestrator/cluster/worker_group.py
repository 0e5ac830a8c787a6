"""A group of warm workers: one `fit()` of Ray Train whose workers run trial after trial.

Starting Ray Train workers costs seconds; a plan handed to workers that are up costs
milliseconds. So the training function is a loop that takes requests from a mailbox, and a
group lives until something makes it untrustworthy. Metrics of Ray Train come only with
checkpoints and when its controller polls: outcomes travel through the mailbox too.

This module, `ray_trainer` and `ray_train_deaths` are those that know Ray Train.
"""

from __future__ import annotations

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
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray
from ray.actor import ActorHandle
from ray.exceptions import GetTimeoutError, OutOfMemoryError, RayActorError, RayError
from ray.train import FailureConfig, RunConfig, ScalingConfig, TrainingFailedError
from ray.train.v2.api.exceptions import WorkerGroupError

from orchestrator.cluster.channels import Mailbox, Seat
from orchestrator.cluster.cleanup import (
    end_controllers,
    end_on_nodes,
    free_abandoned,
    oom_killed,
    session_folder,
)
from orchestrator.cluster.nodes import ID_LABEL, gone_among
from orchestrator.cluster.runtime import WORKER_ENVIRONMENT, to_hand_over
from orchestrator.cluster.trainer import LeanTrainer, ProcessGroup
from orchestrator.core.failures import (
    GroupFailure,
    failure_decision,
    may_be_a_lost_node,
    outcome_of_group_failure,
)
from orchestrator.core.messages import Assignment, TrialReport
from orchestrator.core.placement import Processes, reason_to_change
from orchestrator.host import oom_kills, package_versions, visible_device_use
from search_spaces.spec.schema import SweepSpec
from search_spaces.trial import Fingerprint, Outcome, TimedOut, TrialRequest

_COLORS = re.compile(r"\x1b\[[0-9;]*m")
_TRACEBACK = ", line "  # File "...", line 7, in f
STOP_SECONDS = 20.0
_POLL_SECONDS = 0.5
_STARTING, _RUNNING = "starting", "running the trial"
_KNOCK_SECONDS = 5.0
_OOM_KILLED = "the kernel's OOM killer ended a process on its node"
_SILENT = "the actor that passes its requests on does not answer"
_COLLECTIVE_SECONDS = 1800  # of the default group, in which no rank ever waits


def group_failure(error: Exception | None, doing: str) -> GroupFailure:
    """What Ray says of the end of a group: the cause goes before its echoes."""
    if error is None:
        return GroupFailure(doing=doing, host_memory=False, rank=None, detail="the workers left")
    failures = error.worker_failures if isinstance(error, WorkerGroupError) else {}
    causes = {rank: _root(failure) for rank, failure in failures.items()}
    for kind in (OutOfMemoryError, RayActorError, Exception):
        for rank, cause in causes.items():
            if isinstance(cause, kind):
                memory = isinstance(cause, OutOfMemoryError)
                return GroupFailure(doing=doing, host_memory=memory, rank=rank, detail=_line(cause))
    return GroupFailure(doing=doing, host_memory=False, rank=None, detail=_line(error))


def _root(failure: Exception) -> Exception:
    """What a failed health check of Ray Train found, or the failure itself."""
    found = getattr(failure, "health_check_failure", None)
    return found if isinstance(found, Exception) else failure


def _line(error: Exception) -> str:
    """What is said of an error; of one that holds a traceback, its end, which names the cause."""
    plain = _COLORS.sub("", str(error)).strip()
    lines = [line.strip() for line in plain.splitlines() if line.strip()]
    told = [lines[0], lines[-1]] if _TRACEBACK in plain else lines
    return f"{type(error).__name__}: {' '.join(told)[:300]}"


class GroupFailed(Exception):  # an event more than an error
    """The group is gone or was ended; `outcome` is what that means for its trial.

    `left` says what of it did not end.
    """

    def __init__(self, outcome: Outcome, left: tuple[str, ...] = ()) -> None:
        super().__init__(outcome)
        self.outcome = outcome
        self.left = left


def worker_loop(config: dict[str, Any]) -> None:
    """What each worker of a group does: takes requests until it is asked to leave."""
    gc.disable()  # what is imported stays: to look through it meanwhile takes a tenth of a start
    from ray.train import get_context

    from workers.entry import run_trial, warm_up
    from workers.worker import Worker

    _enter_folder(config["folder"])
    mailbox: ActorHandle = config["mailbox"]
    rank = get_context().get_world_rank()

    def announce(outcome: Outcome) -> None:
        ray.get(mailbox.announce.remote(rank, outcome))

    context = ray.get_runtime_context()
    me, node = context.current_actor, context.get_node_id()
    mailbox.count.remote(node, oom_kills())
    has_gpu = context.get_accelerator_ids().get("GPU")
    devices = tuple(visible_device_use().items()) if has_gpu else ()
    ray.get(mailbox.sit.remote(Seat(worker=me, node=node, pid=os.getpid(), devices=devices)))
    worker = Worker.start(config["spec"], announce)
    warm_up(config["spec"], worker)
    gc.enable()
    seen = Fingerprint(
        device=worker.device.type,
        device_name=worker.device_name,
        device_memory_bytes=worker.meter.limit_bytes,
        hosts=get_context().get_world_size() // get_context().get_local_world_size(),
        python=platform.python_version(),
        versions=package_versions(),
    )
    ray.get(mailbox.enter.remote(me, seen))
    while (request := ray.get(mailbox.next.remote(rank))) is not None:
        mailbox.count.remote(node, oom_kills())
        outcome = run_trial(request, worker)
        if rank == 0:
            ray.get(mailbox.post.remote(outcome))


def _enter_folder(folder: str) -> None:
    """Goes where the driver was started, so that relative paths and modules mean the same.

    On another host the folder may not exist; there a job's working directory is already set.
    """
    if Path(folder).is_dir():
        os.chdir(folder)


class WorkerGroup:
    """Warm workers, one per rank, that run one trial at a time."""

    def __init__(
        self,
        spec: SweepSpec,
        processes: Processes,
        device: str,
        folder: str,
        doors: tuple[tuple[str, str], ...] = (),
    ) -> None:
        """Starts the workers and waits until all are up.

        Args:
            spec: What the sweep trains.
            processes: How many to start, and how.
            device: "cpu" or "cuda".
            folder: Where relative paths of the spec start.
            doors: Of their nodes: ids, and where each takes connections. A start waits for a node
                that has gone, so that they are knocked at.

        Raises:
            GroupLost: If they do not come up in `cluster.start_minutes`, or die at once.
        """
        self.processes = processes
        self._mailbox = (
            ray.remote(Mailbox)
            .options(num_cpus=0, max_concurrency=1000)
            .remote(processes.world_size)
        )
        self._died = threading.Event()
        self._error: Exception | None = None
        self.seats: Sequence[Seat] = ()  # of its ranks, once they are up
        self._folder = tempfile.mkdtemp(prefix="plimsoll-group-", dir=session_folder())
        given = {"spec": spec, "mailbox": self._mailbox, "folder": folder}
        trainer = _trainer(spec, processes, device, self._folder, given)
        self._thread = threading.Thread(target=self._fit, args=(trainer,), daemon=True)
        self._thread.start()
        start_seconds = 60 * spec.cluster.start_minutes
        members = self._wait(self._mailbox.members.remote(), start_seconds, _STARTING, doors)
        self.fingerprint: Fingerprint = members[0][1]
        self.seats = self._asked(self._mailbox.seats.remote()) or ()

    def run(self, request: TrialRequest, deadline_seconds: float) -> Outcome:
        """Runs a trial on all ranks.

        Raises:
            GroupLost: If a worker dies, or the deadline passes; holds the outcome.
        """
        outcome: Outcome = self._wait(self._mailbox.run.remote(request), deadline_seconds, _RUNNING)
        return outcome

    def stop(self) -> None:
        """Lets the workers leave, and ends those that do not in `STOP_SECONDS`."""
        if not self._died.is_set():
            with contextlib.suppress(RayError):
                ray.get(self._mailbox.dismiss.remote(), timeout=_POLL_SECONDS)
            self._died.wait(STOP_SECONDS)
        self.kill()

    def kill(self) -> tuple[str, ...]:
        """Ends the workers at once; returns when their training run and processes are over.

        Returns:
            What did not end even so, a sentence each.
        """
        self.seats = self.seats or self._asked(self._mailbox.seats.remote()) or ()
        if not self._died.is_set():
            for seat in self.seats:
                ray.kill(seat.worker)
            if not self._died.wait(STOP_SECONDS):  # then it is Ray Train itself that hangs
                end_controllers()
                self._died.wait(STOP_SECONDS)
        ray.kill(self._mailbox)
        left = end_on_nodes(self.seats)
        free_abandoned()
        shutil.rmtree(self._folder, ignore_errors=True)
        return left

    def _fit(self, trainer: LeanTrainer) -> None:
        try:
            trainer.fit()
        except (TrainingFailedError, RayError) as error:
            self._error = error
        finally:
            self._died.set()

    def _wait(
        self, reference: Any, seconds: float, doing: str, doors: tuple[tuple[str, str], ...] = ()
    ) -> Any:
        now = time.monotonic()
        until, knock = now + seconds, now + _KNOCK_SECONDS
        while not self._died.is_set():
            try:
                return ray.get(reference, timeout=min(_POLL_SECONDS, seconds))
            except GetTimeoutError:
                now = time.monotonic()
                gone = now > knock and gone_among(doors)
                if now > until or gone:
                    where = " on nodes that have gone" if gone else ""
                    late = TimedOut(deadline_seconds=seconds, detail=f"no end of {doing}{where}")
                    raise self._late(late, doing) from None
                knock = now + _KNOCK_SECONDS if now > knock else knock
            except RayError as error:
                self._died.wait(STOP_SECONDS)  # its ranks see the same
                self._error = self._error or error
                break
        # it may have been on a node that is gone
        announced = self._asked(self._mailbox.announced.remote()) or []
        before = self._asked(self._mailbox.oom_kills.remote()) or {}
        left = self.kill()
        death = group_failure(self._error, doing)
        if not death.host_memory and oom_killed(before):
            death = replace(death, host_memory=True, detail=f"{_OOM_KILLED}: {death.detail}")
        raise GroupFailed(outcome_of_group_failure(death, tuple(announced)), left)

    def _late(self, outcome: TimedOut, doing: str) -> GroupFailed:
        """Ends the group, which is late; its trial is to blame only if it was that which ran."""
        is_silent = self._asked(self._mailbox.announced.remote()) is None
        if not is_silent and doing == _RUNNING:
            return GroupFailed(outcome, self.kill())
        told = f"{outcome.detail} after {outcome.deadline_seconds:.0f} s"
        detail = _SILENT if is_silent else told
        death = GroupFailure(doing=doing, host_memory=False, rank=None, detail=detail)
        return GroupFailed(outcome_of_group_failure(death, ()), self.kill())

    def _asked(self, reference: Any) -> Any:
        """What the mailbox answers; None if it does not."""
        try:
            return ray.get(reference, timeout=STOP_SECONDS)
        except RayError:
            return None


def _trainer(
    spec: SweepSpec, processes: Processes, device: str, folder: str, config: dict[str, Any]
) -> LeanTrainer:
    cuda = device == "cuda"
    environment = WORKER_ENVIRONMENT | dict(processes.environment)
    resources = {"CPU": float(spec.cluster.cpus_per_worker)} | ({"GPU": 1.0} if cuda else {})
    return LeanTrainer(
        worker_loop,
        train_loop_config=config,
        backend_config=ProcessGroup("nccl" if cuda else "gloo", _COLLECTIVE_SECONDS),
        scaling_config=ScalingConfig(
            num_workers=processes.world_size,
            use_gpu=cuda,
            resources_per_worker=resources,
            label_selector=_selectors(processes),
        ),
        run_config=RunConfig(
            name=f"plimsoll-group-{uuid.uuid4().hex[:8]}",
            storage_path=folder,
            failure_config=FailureConfig(max_failures=0, controller_failure_limit=1),
            worker_runtime_env={"env_vars": to_hand_over(environment)},
        ),
    )


def _selectors(processes: Processes) -> list[dict[str, str]] | None:
    """The node of each rank: Ray Train keeps their order, and those of a node together."""
    if processes.placement is None:
        return None
    return [{ID_LABEL: node} for node in processes.placement.node_of_rank]


class WarmGroup:
    """Runs trials one after the other, on one group for as long as it serves."""

    def __init__(self) -> None:
        """Starts without a group: the first trial says how large it must be."""
        self._group: WorkerGroup | None = None

    @property
    def seats(self) -> Sequence[Seat]:
        """Of its workers, if there are any."""
        return self._group.seats if self._group else ()

    def run(self, given: Assignment) -> TrialReport:
        """Runs a trial on the group that it needs, which is started if it is not there."""
        notes: list[str] = []
        started_at = time.time()
        seen: Fingerprint | None = None
        lost: tuple[str, ...] = ()
        ready_at: float | None = None
        try:
            group = self._group_for(given, notes)
            ready_at = time.time()
            seen = group.fingerprint
            outcome = group.run(given.request, given.deadline_seconds)
            if reason := failure_decision(outcome).replace:
                notes.append(f"the worker group is replaced: {reason}")
                self._group = None
                group.stop()
        except GroupFailed as ended:
            outcome, self._group = ended.outcome, None
            reason = failure_decision(outcome).replace or "its workers are gone"
            notes += [f"the worker group is replaced: {reason}", *ended.left]
            if may_be_a_lost_node(outcome):
                lost = gone_among(given.doors)
        ended_at = time.time()
        return TrialReport(
            number=given.request.number,
            outcome=outcome,
            fingerprint=seen,
            notes=tuple(notes),
            started_at=started_at,
            ended_at=ended_at,
            lost=lost,
            workers_seconds=(ended_at if ready_at is None else ready_at) - started_at,
        )

    def stop(self) -> None:
        """Lets the group go."""
        if self._group is not None:
            self._group.stop()
            self._group = None

    def _group_for(self, given: Assignment, notes: list[str]) -> WorkerGroup:
        needed = Processes.of(given.request.plan, given.device, given.placement)
        there = self._group
        if there and (reason := reason_to_change(needed, there.processes, fresh=given.fresh)):
            notes.append(f"the worker group is replaced: {reason}")
            self.stop()
        if self._group is None:
            spec = given.request.spec.on(given.request.plan.accelerator)
            self._group = WorkerGroup(spec, needed, given.device, given.folder, given.doors)
        return self._group
