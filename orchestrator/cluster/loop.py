"""The sweep's main loop under Ray Tune: a Searcher that asks the driver, and a Trainable per group.

Ray Tune starts actors and notices when one dies. The driver (`orchestrator.core.messages`) decides
which plans are tried and what an outcome means. Ray's own OptunaSearch cannot carry constraints,
hence a Searcher of our own. A Tune trial is the life of one worker group, and each plan that runs
on the group is one more result of it: see decision 19.

No other module uses Ray Tune.
"""

from __future__ import annotations

import contextlib
import logging
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, final

import ray
from ray import tune
from ray.actor import ActorHandle
from ray.exceptions import RayActorError, RayError
from ray.tune.search import Searcher

from orchestrator.cluster import ray_private
from orchestrator.cluster.channels import AssignmentQueue, GroupCommand, WorkerProcess
from orchestrator.cluster.cleanup import clean_up_group, session_folder
from orchestrator.cluster.nodes import HEAD_RESOURCE
from orchestrator.cluster.runtime import is_own_ray
from orchestrator.cluster.worker_group import WarmGroup
from orchestrator.core.messages import AbstractDriver, Assignment, Later, TrialReport
from orchestrator.core.notes import Message
from orchestrator.core.placement import Placement
from search_spaces.errors import ClusterError

_CHECK_SECONDS = 5.0
_CLEANUP_SECONDS = 180.0  # for a task to start and to end processes on all nodes, some of them busy
_METRIC = "ended"
_TAKE_SECONDS = 5.0  # after which an idle group reports that it is idle
_HEARTBEAT_SECONDS = 5.0
SILENT_SECONDS = 120.0  # before a runner is killed: no machine is too busy for that long
_MAX_QUEUES = 3  # one after the other, before the sweep fails
_QUEUE, _GROUP, _REPORT = "queue", "group", "report"


class QueueLost(Exception):
    """The queue died or hangs: groups can get no more trials."""


class AbstractSupervisor(ABC):
    """Interface through which the searcher assigns trials to groups, and cleans up after them."""

    actor: ActorHandle  # groups take their assignments from it

    @abstractmethod
    def put(self, group: str, given: Assignment | GroupCommand) -> None:
        """Queues an assignment or a command for a group."""

    @abstractmethod
    def clean_up(self, group: str) -> tuple[str, ...]:
        """Cleans up after a group whose runner died.

        Returns:
            What is still running or still holds memory, a sentence each.
        """


@final
class GroupSupervisor(AbstractSupervisor):
    """Assigns trials to groups through an actor, kills silent runners, and cleans up after them.

    Runners enforce the deadlines of trials and starts. This class enforces one for the runners: if
    one hangs, its trial and the sweep would never end. Ray ends the processes of a dead runner, but
    neither the processes that its workers forked nor its placement group.
    """

    def __init__(self, silent_seconds: float) -> None:
        """Starts the actor.

        Args:
            silent_seconds: Longest silence of a runner, and of the actor.
        """
        self.actor = ray.remote(num_cpus=0, resources=HEAD_RESOURCE)(AssignmentQueue).remote()
        self.lost = False
        self._seconds = silent_seconds
        # of each group, as last reported
        self._worker_processes: dict[str, Sequence[WorkerProcess]] = {}
        self._next_check = self._last_answer = time.monotonic()

    def put(self, group: str, given: Assignment | GroupCommand) -> None:
        self._answer(self.actor.put.remote(group, given), self._seconds)

    def check_heartbeats(self) -> None:
        """Kills runners that are silent. Call it often.

        Raises:
            QueueLost: If the actor died or hangs.
        """
        now = time.monotonic()
        if not self.lost and now >= self._next_check:
            self._next_check = now + _CHECK_SECONDS
            answer = self._answer(self.actor.silent_runners.remote(self._seconds), _CHECK_SECONDS)
            if answer is not None:
                silent, self._worker_processes = answer
                for runner in silent:
                    ray.kill(runner)
        if self.lost:
            raise QueueLost

    def clean_up(self, group: str) -> tuple[str, ...]:
        worker_processes = self._worker_processes.pop(group, ())
        task = ray.remote(num_cpus=0, max_retries=0, resources=HEAD_RESOURCE)(clean_up_group)
        try:
            faults: tuple[str, ...] = ray.get(
                task.remote(worker_processes), timeout=_CLEANUP_SECONDS
            )
        except RayError as error:
            name = type(error).__name__
            return (f"cleanup after a worker group failed, its processes may still run: {name}",)
        return faults

    def close(self) -> None:
        """Ends the actor."""
        ray.kill(self.actor)

    def _answer(self, reference: Any, seconds: float) -> Any:
        """Returns the actor's answer, or None if there is none within `seconds`."""
        try:
            answer = ray.get(reference, timeout=seconds)
        except RayError as error:
            is_silent = time.monotonic() - self._last_answer > self._seconds
            self.lost |= is_silent or isinstance(error, RayActorError)
            return None
        self._last_answer = time.monotonic()
        return answer


class GroupRunner(tune.Trainable):  # type: ignore[misc]  # Ray is untyped
    """Actor that runs trial after trial on its worker group, until there are no more."""

    def setup(self, config: dict[str, Any]) -> None:
        """Starts without workers: the first trial determines how many it needs."""
        self._queue: ActorHandle = config[_QUEUE]
        self._name: str = config[_GROUP]
        self._group = WarmGroup()
        self._ended = threading.Event()
        self._actor = ray.get_runtime_context().current_actor
        threading.Thread(target=self._send_heartbeats, daemon=True).start()

    def _send_heartbeats(self) -> None:
        while True:
            self._queue.beat.remote(self._name, self._actor, self.worker_processes())
            if self._ended.wait(_HEARTBEAT_SECONDS):
                return

    def step(self) -> dict[str, Any]:
        """Waits for a trial, runs it and reports its outcome."""
        try:
            assigned = ray.get(self._queue.take.remote(self._name, _TAKE_SECONDS))
        except RayActorError:  # the next queue starts groups of its own
            assigned = GroupCommand.LEAVE
        if isinstance(assigned, Assignment):
            return {_REPORT: self.run(assigned), _METRIC: 1}
        if assigned is GroupCommand.RELEASE:
            self._group.stop()
        return {_METRIC: 0, "done": assigned is GroupCommand.LEAVE}

    def run(self, given: Assignment) -> TrialReport:
        """Runs one trial."""
        return self._group.run(given)

    def worker_processes(self) -> Sequence[WorkerProcess]:
        """Returns the processes of the group's workers."""
        return self._group.worker_processes

    def cleanup(self) -> None:
        """Stops the workers."""
        self._ended.set()
        self._group.stop()

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Does nothing: the study holds all results."""


class HealthCallback(tune.Callback):  # type: ignore[misc]  # Ray is untyped
    """Checks the queue and the runners while Tune runs."""

    def __init__(self, supervisor: GroupSupervisor) -> None:
        self._supervisor = supervisor

    def on_step_end(self, iteration: int, trials: list[Any], **info: object) -> None:
        """Checks them. Tune calls this several times a second, and ends if it raises."""
        self._supervisor.check_heartbeats()


class PlanSearcher(Searcher):  # type: ignore[misc]  # Ray is untyped
    """Asks the driver for trials, assigns them to groups and passes their reports to the driver."""

    def __init__(
        self, driver: AbstractDriver | None, supervisor: AbstractSupervisor | None
    ) -> None:
        super().__init__(metric=_METRIC, mode="max")
        self._driver = driver
        self._supervisor = supervisor
        self._numbers: dict[str, int] = {}  # of the trial that each busy group runs
        self._idle: list[str] = []  # groups that wait for a trial
        self._placements: dict[str, Placement] = {}  # of each group's workers

    def __reduce__(self) -> tuple[type[PlanSearcher], tuple[None, None]]:
        # Tune pickles its searcher next to its results. A sweep resumes from the study instead, and
        # the driver's connections cannot be pickled.
        return (type(self), (None, None))

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        """Returns the configuration of one more group, as Tune has room for it.

        Returns:
            None if there is nothing to run now, `Searcher.FINISHED` if the sweep is over.
        """
        assert self._supervisor is not None
        proposed = self._next_assignment()
        if proposed is None:
            self._dismiss_idle()
            finished: str = Searcher.FINISHED
            return finished
        if isinstance(proposed, Later):
            return None
        if self._idle:
            self._assign(proposed)
            return None
        self._assign(proposed, trial_id)
        return {_QUEUE: self._supervisor.actor, _GROUP: trial_id}

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """Passes a report to the driver, and assigns trials to idle groups.

        Idle groups call this every few seconds as well: there may be room for a trial by then.
        """
        assert self._driver is not None
        if _REPORT in result:
            del self._numbers[trial_id]
            if result[_REPORT].lost:
                self._placements.pop(trial_id, None)
            self._driver.conclude(result[_REPORT])
            self._idle.append(trial_id)
        while self._idle:
            proposed = self._next_assignment()
            if proposed is None:
                self._dismiss_idle()
            elif isinstance(proposed, Later):
                return
            else:
                self._assign(proposed)

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Forgets a group that ended. If it ran a trial, its runner died."""
        assert self._driver is not None
        assert self._supervisor is not None
        faults = self._supervisor.clean_up(trial_id) if error else ()
        self._placements.pop(trial_id, None)
        if trial_id in self._idle:
            self._idle.remove(trial_id)
        if (number := self._numbers.pop(trial_id, None)) is not None:
            self._driver.lose(number, [Message(text=fault) for fault in faults])

    def lose_all(self) -> None:
        """Forgets all groups, whose runners died."""
        for group in {*self._numbers, *self._idle, *self._placements}:
            self.on_trial_complete(group, error=True)

    def _next_assignment(self) -> Assignment | Later | None:
        assert self._driver is not None
        warm = (self._placements.get(group) for group in self._idle)
        return self._driver.propose([placement for placement in warm if placement is not None])

    def _assign(self, assignment: Assignment, new_group: str | None = None) -> None:
        """Gives a trial to the group that is just started, or else to the best idle one.

        The best has its workers where the trial runs. Next best is a group that loses its workers
        to the trial, then one without workers.
        """
        assert self._supervisor is not None
        placement_of = self._placements.get
        evicted = [group for group in self._idle if placement_of(group) in assignment.evicted]
        in_place = [group for group in self._idle if placement_of(group) == assignment.placement]
        bare = [group for group in self._idle if group not in self._placements]
        group = new_group or next(iter([*in_place, *evicted, *bare, *self._idle]))
        for other in evicted:
            del self._placements[other]
            if other != group:
                self._supervisor.put(other, GroupCommand.RELEASE)
        if new_group is None:
            self._idle.remove(group)
        self._numbers[group] = assignment.request.number
        if assignment.placement is not None:
            self._placements[group] = assignment.placement
        self._supervisor.put(group, assignment)

    def _dismiss_idle(self) -> None:
        assert self._supervisor is not None
        for group in self._idle:
            self._supervisor.put(group, GroupCommand.LEAVE)
        self._idle.clear()

    def save(self, checkpoint_path: str) -> None:
        """Does nothing: the study holds all results."""

    def restore(self, checkpoint_path: str) -> None:
        """Does nothing: a sweep resumes from the study."""


def run_trials(
    driver: AbstractDriver,
    at_once: int = 1,
    runner: type[tune.Trainable] = GroupRunner,
    silent_seconds: float = SILENT_SECONDS,
) -> None:
    """Runs trials until the driver has no more.

    Args:
        driver: Decides which trials run.
        at_once: Most worker groups, and so trials, at the same time.
        runner: Class of the actor that runs the trials of one group.
        silent_seconds: Longest silence of a runner before it is killed.

    Raises:
        ClusterError: If the actor that hands trials to groups was lost repeatedly.
    """
    # Tune logs a traceback for a runner that died; the sweep reports what happens to its trial
    logging.getLogger("ray.tune.execution.tune_controller").setLevel(logging.CRITICAL)
    _limit_environment()
    for _ in range(_MAX_QUEUES):
        supervisor = GroupSupervisor(silent_seconds)
        searcher = PlanSearcher(driver, supervisor)
        try:
            with contextlib.suppress(QueueLost):
                _run_tune(searcher, supervisor, at_once, runner)
        finally:
            supervisor.close()
        if not supervisor.lost:
            return
        searcher.lose_all()
    raise ClusterError(
        f"the actor that hands trials to worker groups died or hung {_MAX_QUEUES} times on the head"
        " node: check what ends processes there; the same command resumes the sweep"
    )


def _limit_environment() -> None:
    """Reduces what Tune hands to runners, if they have the environment of their node.

    The driver's AWS keys never go: they would be in a record that Ray logs.
    """
    names, defaults = ray_private.tune_environment()
    if is_own_ray():
        names.clear()
        defaults.clear()
    names.difference_update([name for name in names if name.startswith("AWS_")])


def _run_tune(
    searcher: PlanSearcher, supervisor: GroupSupervisor, at_once: int, runner: type[tune.Trainable]
) -> None:
    with tempfile.TemporaryDirectory(prefix="plimsoll-tune-", dir=session_folder()) as folder:
        tune.Tuner(
            tune.with_resources(runner, HEAD_RESOURCE),
            tune_config=tune.TuneConfig(
                search_alg=searcher, num_samples=-1, max_concurrent_trials=at_once
            ),
            run_config=tune.RunConfig(
                storage_path=folder,
                name="trials",
                verbose=0,
                callbacks=[HealthCallback(supervisor)],
            ),
        ).fit()
