"""Worker groups under Ray Tune, and what is heard from them.

A Tune trial is the life of one worker group: Tune starts its process, notices when it dies, and
carries the reports of the plans that run on the group as results of the trial. Tune runs in a
thread of its own. Its search algorithm puts all that into the controller's inbox, and takes groups
to start from a queue; it decides nothing. See decisions 11 and 12.

No other module uses Ray Tune.
"""

from __future__ import annotations

import contextlib
import logging
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, final

import ray
from ray import cloudpickle, tune
from ray.actor import ActorHandle
from ray.exceptions import RayActorError, RayError
from ray.tune.error import TuneError
from ray.tune.search import Searcher

from orchestrator.cluster import ray_private
from orchestrator.cluster.channels import GroupQueues, WorkerProcess, tell_driver
from orchestrator.cluster.cleanup import clean_up_group, session_folder
from orchestrator.cluster.nodes import HEAD_RESOURCE, RayNodes
from orchestrator.cluster.runtime import is_own_ray
from orchestrator.cluster.worker_group import WarmGroup
from orchestrator.core.cluster import AbstractCluster
from orchestrator.core.inputs import GroupsEnded, Input, StopRequested
from orchestrator.core.instructions import Dismiss, GroupMessage, Release, Run
from orchestrator.core.placement import Node, Shortfall
from orchestrator.host import in_notebook, os_error_behind
from search_spaces.errors import MachineError
from search_spaces.trial import Activity, Stopped

if TYPE_CHECKING:
    from orchestrator.controller import Controller

_CHECK_SECONDS = 5.0
_LOOK_SECONDS = 0.9  # at what groups do; the controller asks once a second
_CLEANUP_SECONDS = 180.0  # for a task to start and to end processes on all nodes, some of them busy
_TAKE_SECONDS = 5.0  # after which an idle group reports that it is idle
_HEARTBEAT_SECONDS = 5.0
_SUGGEST_SECONDS = 1.0
_END_SECONDS = 60.0  # for groups that were dismissed to end, and Tune after them
_ABANDON_SECONDS = 10.0
SILENT_SECONDS = 120.0  # before a runner is killed: no machine is too busy for that long
_QUEUES, _GROUP, _REPORT = "queues", "group", "report"


class _Abandoned(BaseException):
    """Ends Tune at once; it would clean up after an `Exception`, and wait for groups."""


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
        show: Callable[[Activity], None] = lambda _: None,
    ) -> None:
        """Starts the actor that hands messages to groups.

        Args:
            nodes: The nodes of the cluster.
            silent_seconds: Longest silence of a group, and of the actor.
            alive: Called whenever the cluster has answered; see `watchdog`.
            show: Receives what groups do, about once a second.
        """
        self._alive, self._show = alive, show
        self._nodes = nodes
        self._seconds = silent_seconds
        self._need: Shortfall | None = None
        self.starting: SimpleQueue[str] = SimpleQueue()  # groups to start
        # of each group, as last reported
        self._worker_processes: dict[str, Sequence[WorkerProcess]] = {}
        self.queues = ray.remote(num_cpus=0, resources=HEAD_RESOURCE)(GroupQueues).remote()
        self.put: Callable[[Input], None] = lambda _: None
        self.has_ended = False  # the sweep, so that Tune may end
        self.is_abandoned = False
        self.fault: Exception | None = None  # that stopped the sweep
        self._lost = False
        self._silent: Any = None  # the answer that names silent runners, until it has come
        self._next_check = self._next_look = self._last_answer = time.monotonic()

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        # Tune pickles its searcher and callbacks next to its results. A sweep resumes from the
        # study instead, and the driver's connections cannot be pickled.
        return (type(None), ())

    def nodes(self) -> tuple[Node, ...]:
        """Returns the nodes that are up, and kills silent groups: the controller often asks."""
        self._check()
        return self._nodes.up()

    def request_capacity(self, need: Shortfall) -> None:
        self._need = need
        self._nodes.request_capacity(need)

    def start_group(self, group: str) -> None:
        self.starting.put(group)

    def send(self, group: str, message: GroupMessage) -> None:
        self._answer(self.queues.put.remote(group, message), self._seconds)

    def kill(self, group: str) -> None:
        self._answer(self.queues.expire.remote(group), _CHECK_SECONDS)

    def _check(self) -> None:
        """Kills groups that are silent, and renews the request for capacity."""
        self._alive()
        now = time.monotonic()
        if not self._lost and now >= self._next_look:
            self._next_look = now + _LOOK_SECONDS
            for activity in self._answer(self.queues.activities.remote(), _CHECK_SECONDS) or ():
                self._show(activity)
        if not self._lost and now >= self._next_check:
            self._next_check = now + _CHECK_SECONDS
            if self._need is not None:
                self._nodes.request_capacity(self._need)
            # an answer that is late is awaited again: it names each silent runner once
            if self._silent is None:
                self._silent = self.queues.silent_runners.remote(self._seconds)
            if (answer := self._answer(self._silent, _CHECK_SECONDS)) is not None:
                self._silent = None
                silent, self._worker_processes = answer
                for runner in silent:
                    ray.kill(cloudpickle.loads(runner))
        if self._lost:
            self._fail(
                MachineError(
                    "the actor that hands trials to worker groups died or hung on the head node:"
                    " check what ends processes there; the same command resumes the sweep"
                ),
                "a fault of the cluster",
            )

    def run_tune(self, max_groups: int, runner: type[tune.Trainable]) -> None:
        """Runs groups until the sweep has ended; a fault of Tune's stops the sweep."""
        # Tune logs tracebacks for a group that died, whose trial the sweep reports, and for states
        # of its own that a full disk does not take, which nothing reads
        for name in ("execution.tune_controller", "execution.experiment_state", "tune"):
            logging.getLogger(f"ray.tune.{name}").setLevel(logging.CRITICAL)
        ray_private.limit_tune_environment(inherited=is_own_ray())
        fault: Exception = MachineError("Ray Tune ended before the sweep")
        try:
            with contextlib.suppress(_Abandoned):
                _run_tune(self, max_groups, runner)
        except (TuneError, RayError, OSError) as error:  # `run_groups` raises it
            fault = os_error_behind(error) or error
        finally:
            if not (self.has_ended or self.is_abandoned):
                self._fail(fault, str(fault))

    def _fail(self, fault: Exception, cause: str) -> None:
        if self.fault is None:
            self.fault = fault
            self.put(StopRequested(cause=Stopped(by=cause), at=0.0))

    def clean_up(self, group: str) -> tuple[str, ...]:
        """Cleans up after a group that died; returns what is still running, a sentence each."""
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

    def _answer(self, reference: Any, seconds: float) -> Any:
        """Returns the actor's answer, or None if there is none within `seconds`, or it is lost."""
        if self._lost:
            return None
        try:
            answer = ray.get(reference, timeout=seconds)
        except RayError as error:
            is_silent = time.monotonic() - self._last_answer > self._seconds
            self._lost |= is_silent or isinstance(error, RayActorError)
            return None
        self._last_answer = time.monotonic()
        return answer


class GroupRunner(tune.Trainable):  # type: ignore[misc]  # Ray is untyped
    """Process that runs trial after trial on its worker group, until it is dismissed."""

    def setup(self, config: dict[str, Any]) -> None:
        """Starts without workers: the first trial determines how many it needs."""
        self._queues: ActorHandle = config[_QUEUES]
        self._name: str = config[_GROUP]
        self._group = WarmGroup(partial(tell_driver, self._queues, self._name))
        self._ended = threading.Event()
        self._actor = cloudpickle.dumps(ray.get_runtime_context().current_actor)
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
        except RayActorError:  # the actor died or hangs: the sweep ends, see `TuneCluster.nodes`
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


class GroupSearcher(Searcher):  # type: ignore[misc]  # Ray is untyped
    """Tune's search algorithm, whose suggestions are groups to start. Runs in Tune's thread."""

    def __init__(self, cluster: TuneCluster) -> None:
        super().__init__()
        self._cluster = cluster
        self._names: dict[str, str] = {}  # of groups, by Tune's trial

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        """Returns the configuration of one more group, as Tune has room for it.

        Returns:
            None if no group is to start now, `Searcher.FINISHED` if the sweep is over.
        """
        if self._cluster.has_ended:
            return Searcher.FINISHED
        try:  # without a group Tune asks once a second and does nothing else
            name = self._cluster.starting.get(timeout=0.0 if self._names else _SUGGEST_SECONDS)
        except Empty:
            return None
        self._names[trial_id] = name
        return {_QUEUES: self._cluster.queues, _GROUP: name}

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """Passes a report on; idle groups have none."""
        if (report := result.get(_REPORT)) is not None:
            self._cluster.put(report)

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Passes on that a group ended."""
        if (name := self._names.pop(trial_id, None)) is not None:
            faults = self._cluster.clean_up(name) if error else ()
            # one that was dismissed has no trial
            ended = GroupsEnded(groups=(name,), faults=faults, lost_contact=not error, at=0.0)
            self._cluster.put(ended)

    def save(self, checkpoint_path: str) -> None:
        """Does nothing: the study holds all results."""

    def restore(self, checkpoint_path: str) -> None:
        """Does nothing: a sweep resumes from the study."""


class AbandonCallback(tune.Callback):  # type: ignore[misc]  # Ray is untyped
    """Ends Tune between two of its steps, once nobody waits for its groups any more."""

    def __init__(self, cluster: TuneCluster) -> None:
        self._cluster = cluster

    def on_step_end(self, iteration: int, trials: list[Any], **info: object) -> None:
        """Ends Tune by an exception; Tune calls this several times a second."""
        if self._cluster.is_abandoned:
            raise _Abandoned


def run_groups(
    controller: Controller,
    cluster: TuneCluster,
    max_groups: int = 1,
    runner: type[tune.Trainable] = GroupRunner,
) -> None:
    """Runs the controller's loop, with Ray Tune in a thread beside it.

    `tune.run` may be called from a thread, and leaves signals alone there. Stepping Tune's own
    controller in our loop would need what is private to Ray, and wait with it.

    Args:
        controller: Decides what the groups run.
        cluster: Its cluster.
        max_groups: Most groups at the same time.
        runner: Class of the process that runs the trials of one group.

    Raises:
        MachineError: If the actor that hands trials to groups died or hung.
        OSError: If this machine does not take what Tune writes, as on a full disk.
        TuneError: If Tune failed otherwise.
    """
    cluster.put = controller.put
    thread = threading.Thread(target=cluster.run_tune, args=(max_groups, runner), daemon=True)
    thread.start()
    try:
        controller.run()
        cluster.has_ended = True
        if not controller.is_stopped:
            thread.join(_END_SECONDS)
    finally:
        cluster.is_abandoned = True
        thread.join(_ABANDON_SECONDS)
        cluster.close()
    ended = controller.state.sweep.ended
    if cluster.fault is not None and ended is not None and isinstance(ended.reason, Stopped):
        raise cluster.fault


def _run_tune(cluster: TuneCluster, max_groups: int, runner: type[tune.Trainable]) -> None:
    with tempfile.TemporaryDirectory(prefix="plimsoll-tune-", dir=session_folder()) as folder:
        tune.Tuner(
            tune.with_resources(runner, HEAD_RESOURCE),
            tune_config=tune.TuneConfig(
                search_alg=GroupSearcher(cluster), num_samples=-1, max_concurrent_trials=max_groups
            ),
            run_config=tune.RunConfig(
                storage_path=folder,
                name="trials",
                verbose=0,
                # by default one for notebooks, which empties the cell; it reports nothing here
                progress_reporter=tune.CLIReporter() if in_notebook() else None,
                callbacks=[AbandonCallback(cluster)],
            ),
        ).fit()
