"""A group of warm workers: one `TorchTrainer.fit()` whose workers run trial after trial.

Starting Ray Train workers costs seconds; a plan handed to workers that are up costs
milliseconds. So the training function is a loop that takes requests from a mailbox, and a
group lives until something makes it untrustworthy. Metrics of Ray Train come only with
checkpoints and when its controller polls: outcomes travel through the mailbox too.

This module and `ray_train_deaths` are those that know Ray Train.
"""

from __future__ import annotations

import contextlib
import os
import platform
import tempfile
import threading
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ray
from ray.actor import ActorHandle
from ray.exceptions import GetTimeoutError, RayError
from ray.train import FailureConfig, RunConfig, ScalingConfig, TrainingFailedError
from ray.train.torch import TorchConfig, TorchTrainer
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from orchestrator.core.endings import outcome_of_death
from orchestrator.core.processes import Processes
from orchestrator.fingerprint import package_versions
from orchestrator.leftovers import end_left_overs
from orchestrator.mailboxes import Mailbox, Seat
from orchestrator.ray_nodes import ID_LABEL, gone_among
from orchestrator.ray_train_deaths import death_of
from search_spaces.outcome import Outcome, TimedOut
from search_spaces.record import Fingerprint
from search_spaces.request import TrialRequest
from search_spaces.spec.schema import SweepSpec

START_SECONDS = 300.0
STOP_SECONDS = 20.0
_LEAVE_SECONDS = 5.0  # in which a process that was told to end ends by itself
_POLL_SECONDS = 0.5
_KNOCK_SECONDS = 5.0
_WORKER_ENVIRONMENT = {
    # One heap for all threads: glibc tries another when one is full, and what a trial that ran out
    # of memory left in that does not come back.
    "MALLOC_ARENA_MAX": "1",
    # What is measured has the priority that the user's own training will have. Ray starts workers
    # with 15, where anything else that computes on the node leaves them 3 % of its cores.
    "RAY_worker_niceness": "0",
}
_COLLECTIVE_SECONDS = 1800  # of the default group, in which no rank ever waits


class GroupLost(Exception):  # an event more than an error
    """The group is gone or was ended; `outcome` is what that means for its trial.

    `left` says what of it did not end.
    """

    def __init__(self, outcome: Outcome, left: tuple[str, ...] = ()) -> None:
        super().__init__(outcome)
        self.outcome = outcome
        self.left = left


def serve(config: dict[str, Any]) -> None:
    """What each worker of a group does: takes requests until it is asked to leave."""
    from ray.train import get_context

    from workers.entry import rehearse, run_trial
    from workers.worker import Worker

    _enter_folder(config["folder"])
    mailbox: ActorHandle = config["mailbox"]
    rank = get_context().get_world_rank()

    def announce(outcome: Outcome) -> None:
        ray.get(mailbox.announce.remote(rank, outcome))

    context = ray.get_runtime_context()
    me = context.current_actor
    ray.get(mailbox.sit.remote(Seat(worker=me, node=context.get_node_id(), pid=os.getpid())))
    worker = Worker.start(config["spec"], announce)
    rehearse(config["spec"], worker)
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
            GroupLost: If they do not come up in `START_SECONDS`, or die at once.
        """
        self.processes = processes
        self._mailbox = (
            ray.remote(Mailbox)
            .options(num_cpus=0, max_concurrency=1000)
            .remote(processes.world_size)
        )
        self._died = threading.Event()
        self._error: Exception | None = None
        trainer = _trainer(
            spec, processes, device, {"spec": spec, "mailbox": self._mailbox, "folder": folder}
        )
        self._thread = threading.Thread(target=self._fit, args=(trainer,), daemon=True)
        self._thread.start()
        members = self._wait(self._mailbox.members.remote(), START_SECONDS, "starting", doors)
        self.fingerprint: Fingerprint = members[0][1]

    def run(self, request: TrialRequest, deadline_seconds: float) -> Outcome:
        """Runs a trial on all ranks.

        Raises:
            GroupLost: If a worker dies, or the deadline passes; holds the outcome.
        """
        outcome: Outcome = self._wait(
            self._mailbox.run.remote(request), deadline_seconds, "running the trial"
        )
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
        seats: list[Seat] = []
        with contextlib.suppress(RayError):
            seats = ray.get(self._mailbox.seats.remote(), timeout=STOP_SECONDS)
        if not self._died.is_set():
            for seat in seats:
                ray.kill(seat.worker)
            if not self._died.wait(STOP_SECONDS):  # then it is Ray Train itself that hangs
                end_left_overs(_owned("TrainController"), 0)
                self._died.wait(STOP_SECONDS)
        ray.kill(self._mailbox)
        return _end_left_overs(seats)

    def _fit(self, trainer: TorchTrainer) -> None:
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
                    left = self.kill()
                    detail = f"no end of {doing}" + (" on nodes that have gone" if gone else "")
                    late = TimedOut(deadline_seconds=seconds, detail=detail)
                    raise GroupLost(late, left) from None
                knock = now + _KNOCK_SECONDS if now > knock else knock
        announced: list[Outcome] = []
        with contextlib.suppress(RayError):  # it may have been on a node that is gone
            announced = ray.get(self._mailbox.announced.remote(), timeout=STOP_SECONDS)
        left = self.kill()
        raise GroupLost(outcome_of_death(death_of(self._error, doing), tuple(announced)), left)


def _owned(kind: str) -> list[int]:
    """Ids of the processes of actors of a class that this process started, which run beside it."""
    from ray._private.state import actors  # Ray has no public way without its dashboard

    node = ray.get_runtime_context().get_node_id()
    alive = [a for a in actors().values() if a["State"] == "ALIVE"]
    here = [a for a in alive if a["Address"]["NodeID"] == node]
    mine = [a["Address"] for a in here if a["Pid"] == os.getpid()]
    return [a["Pid"] for a in here if a["ActorClassName"] == kind and a["OwnerAddress"] in mine]


def _end_left_overs(seats: Sequence[Seat]) -> tuple[str, ...]:
    """Sees to it, on each node, that no process of the workers is left; says where one is."""
    here = ray.get_runtime_context().get_node_id()
    told = []
    for node in sorted({seat.node for seat in seats}):
        leaders = [seat.pid for seat in seats if seat.node == node]
        left: tuple[int, ...] = ()
        if node == here:
            left = end_left_overs(leaders, _LEAVE_SECONDS)
        else:
            there = NodeAffinitySchedulingStrategy(node, soft=False)
            task = ray.remote(num_cpus=0, max_retries=0, scheduling_strategy=there)(end_left_overs)
            with contextlib.suppress(RayError):  # a node that is gone has no processes
                left = ray.get(task.remote(leaders, _LEAVE_SECONDS), timeout=2 * STOP_SECONDS)
        if left:
            pids = ", ".join(map(str, left))
            told.append(f"processes {pids} on node {node} do not end, though they were killed")
    return tuple(told)


def _trainer(
    spec: SweepSpec, processes: Processes, device: str, config: dict[str, Any]
) -> TorchTrainer:
    cuda = device == "cuda"
    resources = {"CPU": float(spec.cluster.cpus_per_worker)} | ({"GPU": 1.0} if cuda else {})
    return TorchTrainer(
        serve,
        train_loop_config=config,
        torch_config=TorchConfig(backend="nccl" if cuda else "gloo", timeout_s=_COLLECTIVE_SECONDS),
        scaling_config=ScalingConfig(
            num_workers=processes.world_size,
            use_gpu=cuda,
            resources_per_worker=resources,
            label_selector=_selectors(processes),
        ),
        run_config=RunConfig(
            name=f"plimsoll-group-{uuid.uuid4().hex[:8]}",
            storage_path=tempfile.mkdtemp(prefix="plimsoll-group-"),
            failure_config=FailureConfig(max_failures=0, controller_failure_limit=1),
            worker_runtime_env={"env_vars": _WORKER_ENVIRONMENT | dict(processes.environment)},
        ),
    )


def _selectors(processes: Processes) -> list[dict[str, str]] | None:
    """The node of each rank: Ray Train keeps their order, and those of a node together."""
    if processes.placement is None:
        return None
    return [{ID_LABEL: node} for node in processes.placement.node_of_rank]
