"""Worker groups under Ray Tune, and what is heard from them.

A Tune trial is the life of one worker group: Tune starts its process, notices when it dies, and
carries the reports of the plans that run on the group as results of the trial. Tune's search
algorithm passes all that to the controller as inputs, and starts groups as the controller says; it
decides nothing. See decisions 11 and 12.

No other module uses Ray Tune.
"""

from __future__ import annotations

import contextlib
import logging
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, final

import ray
from ray import tune
from ray.actor import ActorHandle
from ray.exceptions import RayActorError, RayError
from ray.tune.error import TuneError
from ray.tune.search import Searcher

from orchestrator.cluster import ray_private
from orchestrator.cluster.channels import GroupQueues, WorkerProcess
from orchestrator.cluster.cleanup import clean_up_group, session_folder
from orchestrator.cluster.nodes import HEAD_RESOURCE, RayNodes
from orchestrator.cluster.runtime import is_own_ray
from orchestrator.cluster.worker_group import WarmGroup
from orchestrator.core.cluster import AbstractCluster
from orchestrator.core.controller_state import Phase
from orchestrator.core.inputs import GroupsEnded, StopRequested, TrialFinished
from orchestrator.core.instructions import Dismiss, Release, Run
from orchestrator.core.placement import Node, Shortfall
from orchestrator.host import os_error_behind
from search_spaces.errors import MachineError
from search_spaces.trial import Stopped

if TYPE_CHECKING:
    from orchestrator.controller import Controller

_CHECK_SECONDS = 5.0
_CLEANUP_SECONDS = 180.0  # for a task to start and to end processes on all nodes, some of them busy
_TAKE_SECONDS = 5.0  # after which an idle group reports that it is idle
_HEARTBEAT_SECONDS = 5.0
_TICK_SECONDS = 1.0
SILENT_SECONDS = 120.0  # before a runner is killed: no machine is too busy for that long
_QUEUES, _GROUP, _REPORT = "queues", "group", "report"


class _QueuesLostError(Exception):
    """The actor with the queues died or hangs: groups can get no more trials."""


@final
class TuneCluster(AbstractCluster):
    """Groups that Ray Tune runs. Sends them messages through an actor, and kills silent ones.

    Groups enforce the deadlines of trials and starts. This class enforces one for their own
    processes: if one hangs, its trial and the sweep would never end. Ray ends the processes of a
    dead one, but neither the processes that its workers forked nor its placement group.
    """

    def __init__(
        self,
        nodes: RayNodes,
        silent_seconds: float = SILENT_SECONDS,
        alive: Callable[[], None] = lambda: None,
    ) -> None:
        """Starts the actor that hands messages to groups.

        Args:
            nodes: The nodes of the cluster.
            silent_seconds: Longest silence of a group, and of the actor.
            alive: Called whenever the cluster has answered; see `watchdog`.
        """
        self._alive = alive
        self._nodes = nodes
        self._seconds = silent_seconds
        self._need: Shortfall | None = None
        self.starting: deque[str] = deque()  # groups to start
        # of each group, as last reported
        self._worker_processes: dict[str, Sequence[WorkerProcess]] = {}
        self.queues = ray.remote(num_cpus=0, resources=HEAD_RESOURCE)(GroupQueues).remote()
        self.lost = False
        self.error: Exception | None = None  # the first one that Tune was told
        self._next_check = self._last_answer = time.monotonic()

    def nodes(self) -> tuple[Node, ...]:
        return self._nodes.up()

    def request_capacity(self, need: Shortfall) -> None:
        self._need = need
        self._nodes.request_capacity(need)

    def start_group(self, group: str) -> None:
        self.starting.append(group)

    def send(self, group: str, message: Run | Release | Dismiss) -> None:
        self._answer(self.queues.put.remote(group, message), self._seconds)

    def kill(self, group: str) -> None:
        if group in self.starting:
            self.starting.remove(group)
        else:
            self._answer(self.queues.expire.remote(group), _CHECK_SECONDS)

    def check(self) -> None:
        """Kills groups that are silent, and renews the request for capacity. Call it often.

        Raises:
            _QueuesLostError: If the actor died or hangs.
        """
        self._alive()
        now = time.monotonic()
        if not self.lost and now >= self._next_check:
            self._next_check = now + _CHECK_SECONDS
            if self._need is not None:
                self._nodes.request_capacity(self._need)
            answer = self._answer(self.queues.silent_runners.remote(self._seconds), _CHECK_SECONDS)
            if answer is not None:
                silent, self._worker_processes = answer
                for runner in silent:
                    ray.kill(runner)
        if self.lost:
            raise _QueuesLostError

    def clean_up(self, group: str) -> tuple[str, ...]:
        """Cleans up after a group that died.

        Returns:
            What is still running or still holds memory, a sentence each.
        """
        worker_processes = self._worker_processes.pop(group, ())
        task = ray.remote(num_cpus=0, max_retries=0, resources=HEAD_RESOURCE)(clean_up_group)
        try:
            faults: tuple[str, ...] = ray.get(
                task.remote(worker_processes), timeout=_CLEANUP_SECONDS
            )
        except RayError as error:
            self._alive()
            name = type(error).__name__
            return (f"cleanup after a worker group failed, its processes may still run: {name}",)
        self._alive()
        return faults

    def close(self) -> None:
        """Ends the actor."""
        ray.kill(self.queues)

    @contextlib.contextmanager
    def keeping_errors(self) -> Iterator[None]:
        """Keeps an error of ours before Tune makes text of it."""
        try:
            yield
        except Exception as error:
            self.error = self.error or error
            raise

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
    """Process that runs trial after trial on its worker group, until it is dismissed."""

    def setup(self, config: dict[str, Any]) -> None:
        """Starts without workers: the first trial determines how many it needs."""
        self._queues: ActorHandle = config[_QUEUES]
        self._name: str = config[_GROUP]
        self._group = WarmGroup()
        self._ended = threading.Event()
        self._actor = ray.get_runtime_context().current_actor
        threading.Thread(target=self._send_heartbeats, daemon=True).start()

    def _send_heartbeats(self) -> None:
        while True:
            self._queues.beat.remote(self._name, self._actor, self._group.worker_processes)
            if self._ended.wait(_HEARTBEAT_SECONDS):
                return

    def step(self) -> dict[str, Any]:
        """Waits for a message and does what it says; reports the outcome of a trial."""
        try:
            message = ray.get(self._queues.take.remote(self._name, _TAKE_SECONDS))
        except RayActorError:  # the sweep ends: see `TuneCluster.check`
            return {"done": True}
        if isinstance(message, Run):
            return {_REPORT: self._group.run(message)}
        if isinstance(message, Release):
            self._group.stop()
        return {"done": isinstance(message, Dismiss)}

    def cleanup(self) -> None:
        """Stops the workers."""
        self._ended.set()
        self._group.stop()

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Does nothing: the study holds all results."""


class TickCallback(tune.Callback):  # type: ignore[misc]  # Ray is untyped
    """Checks the groups, and lets time pass for the controller, while Tune runs."""

    def __init__(self, controller: Controller | None, cluster: TuneCluster | None) -> None:
        self._controller = controller
        self._cluster = cluster
        self._next_tick = 0.0

    def __reduce__(self) -> tuple[type[TickCallback], tuple[None, None]]:
        return (type(self), (None, None))  # Tune pickles its callbacks: see `GroupSearcher`

    def on_step_end(self, iteration: int, trials: list[Any], **info: object) -> None:
        """Checks them. Tune calls this several times a second, and ends if it raises."""
        assert self._controller is not None
        assert self._cluster is not None
        self._cluster.check()
        if time.monotonic() >= self._next_tick:
            self._next_tick = time.monotonic() + _TICK_SECONDS
            self._controller.tick()


class GroupSearcher(Searcher):  # type: ignore[misc]  # Ray is untyped
    """Ray Tune's side of the controller: what Tune would search are groups to start."""

    def __init__(self, controller: Controller | None, cluster: TuneCluster | None) -> None:
        super().__init__()
        self._controller = controller
        self._cluster = cluster
        self._names: dict[str, str] = {}  # of groups, by Tune's trial

    def __reduce__(self) -> tuple[type[GroupSearcher], tuple[None, None]]:
        # Tune pickles its searcher next to its results. A sweep resumes from the study instead, and
        # the driver's connections cannot be pickled.
        return (type(self), (None, None))

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        """Returns the configuration of one more group, as Tune has room for it.

        Returns:
            None if no group is to start now, `Searcher.FINISHED` if the sweep is over.
        """
        assert self._controller is not None
        assert self._cluster is not None
        if not self._cluster.starting:
            self._controller.tick()
        if self._cluster.starting:
            name = self._names[trial_id] = self._cluster.starting.popleft()
            return {_QUEUES: self._cluster.queues, _GROUP: name}
        finished: str = Searcher.FINISHED
        return finished if self._controller.state.phase is Phase.DONE else None

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """Passes a report on. Idle groups call this every few seconds as well."""
        assert self._controller is not None
        assert self._cluster is not None
        report: TrialFinished | None = result.get(_REPORT)
        with self._cluster.keeping_errors():
            if report is None:
                self._controller.tick()
            else:
                self._controller.receive(report)

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Passes on that a group ended."""
        assert self._controller is not None
        assert self._cluster is not None
        if (name := self._names.pop(trial_id, None)) is not None:
            with self._cluster.keeping_errors():
                faults = self._cluster.clean_up(name) if error else ()
                self._controller.receive(GroupsEnded(groups=(name,), faults=faults, at=0.0))

    def save(self, checkpoint_path: str) -> None:
        """Does nothing: the study holds all results."""

    def restore(self, checkpoint_path: str) -> None:
        """Does nothing: a sweep resumes from the study."""


def run_groups(
    controller: Controller,
    cluster: TuneCluster,
    max_groups: int = 1,
    runner: type[tune.Trainable] = GroupRunner,
) -> None:
    """Runs groups until the controller has no more trials.

    Args:
        controller: Decides what the groups run.
        cluster: Its cluster.
        max_groups: Most groups at the same time.
        runner: Class of the process that runs the trials of one group.

    Raises:
        MachineError: If the actor that hands trials to groups died or hangs.
        OSError: If this machine does not take what Tune writes, as on a full disk.
    """
    # Tune logs tracebacks for a group that died, whose trial the sweep reports, and for states of
    # its own that a full disk does not take, which nothing reads
    for name in ("ray.tune.execution.tune_controller", "ray.tune.tune"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    _limit_environment()
    try:
        searcher = GroupSearcher(controller, cluster)
        with contextlib.suppress(_QueuesLostError):
            _run_tune(searcher, TickCallback(controller, cluster), max_groups, runner)
        if controller.state.phase is Phase.DONE:
            return
        controller.receive(StopRequested(cause=Stopped(by="a fault of the cluster"), at=0.0))
    except TuneError as error:
        if cluster.error is not None:
            raise cluster.error from None
        if (machine_error := os_error_behind(error)) is None:
            raise
        if controller.state.phase is not Phase.DONE:  # else nothing reads what was not written
            raise machine_error from error
        return
    finally:
        cluster.close()
    raise MachineError(
        "the actor that hands trials to worker groups died or hung on the head node: check what"
        " ends processes there; the same command resumes the sweep"
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
    searcher: GroupSearcher, ticks: TickCallback, max_groups: int, runner: type[tune.Trainable]
) -> None:
    with tempfile.TemporaryDirectory(prefix="plimsoll-tune-", dir=session_folder()) as folder:
        tune.Tuner(
            tune.with_resources(runner, HEAD_RESOURCE),
            tune_config=tune.TuneConfig(
                search_alg=searcher, num_samples=-1, max_concurrent_trials=max_groups
            ),
            run_config=tune.RunConfig(
                storage_path=folder,
                name="trials",
                verbose=0,
                callbacks=[ticks],
            ),
        ).fit()
