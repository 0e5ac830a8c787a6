"""Trials under Ray Tune: a Searcher that asks our driver, and a Trainable that owns a group.

Tune schedules; what is tried, and what an outcome means, is decided by the driver
(`orchestrator.core.messages`). Ray's own OptunaSearch cannot carry constraints, hence the Searcher.
To Tune, a trial is the life of one group of workers, and each plan that runs on it one more result:
see decision 19.

This is the one module that knows Ray Tune.
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
from ray.tune.execution import class_cache
from ray.tune.search import Searcher

from orchestrator.cluster.channels import Desk, Order, Seat
from orchestrator.cluster.cleanup import clean_up_group, session_folder
from orchestrator.cluster.nodes import HEAD_RESOURCE
from orchestrator.cluster.runtime import is_own_ray
from orchestrator.cluster.worker_group import WarmGroup
from orchestrator.core.messages import AbstractDriver, Assignment, Later, TrialReport
from orchestrator.core.placement import Placement
from search_spaces.errors import ClusterError

_LOOK_SECONDS = 5.0
_BURY_SECONDS = 180.0  # for a process to start and end others on all nodes, some busy
_METRIC = "ended"
_AGAIN_SECONDS = 5.0  # after which a group that waits says so
_BEAT_SECONDS = 5.0
SILENT_SECONDS = 120.0  # after which a runner is ended: longer than any machine is too busy for it
_DESKS = 3  # one after the other, before it is given up
_DESK, _GROUP, _REPORT = "desk", "group", "report"


class DeskLost(Exception):
    """The desk died or hangs: no group can be given a trial any more."""


class AbstractDesk(ABC):
    """Where what groups are to do is handed in."""

    actor: ActorHandle  # where groups take it

    @abstractmethod
    def put(self, group: str, given: Assignment | Order) -> None:
        """Lays down what a group is to do next."""

    @abstractmethod
    def bury(self, group: str) -> tuple[str, ...]:
        """Ends what a group left whose runner is gone.

        Returns:
            What does not end, a sentence each.
        """


@final
class FrontDesk(AbstractDesk):
    """Hands trials to groups through an actor, ends runners that are silent, buries the dead.

    Trials and starts have deadlines by their runner's clock; this is the one for the runner itself:
    one that hangs would keep its trial, and the sweep, for ever. Ray ends what a runner started
    when it is gone, but neither what workers forked nor the room that it held.
    """

    def __init__(self, silent_seconds: float) -> None:
        """Starts the actor.

        Args:
            silent_seconds: After which what is not heard of is ended.
        """
        self.actor = ray.remote(num_cpus=0, resources=HEAD_RESOURCE)(Desk).remote()
        self.lost = False
        self._seconds = silent_seconds
        self._seats: dict[str, Sequence[Seat]] = {}  # of workers, as their groups last said
        self._next = self._heard = time.monotonic()

    def put(self, group: str, given: Assignment | Order) -> None:
        self._ask(self.actor.put.remote(group, given), self._seconds)

    def look(self) -> None:
        """Ends runners that are silent; to be called often.

        Raises:
            DeskLost: If the desk itself is.
        """
        now = time.monotonic()
        if not self.lost and now >= self._next:
            self._next = now + _LOOK_SECONDS
            said = self._ask(self.actor.look.remote(self._seconds), _LOOK_SECONDS)
            if said is not None:
                silent, self._seats = said
                for runner in silent:
                    ray.kill(runner)
        if self.lost:
            raise DeskLost

    def bury(self, group: str) -> tuple[str, ...]:
        seats = self._seats.pop(group, ())
        task = ray.remote(num_cpus=0, max_retries=0, resources=HEAD_RESOURCE)(clean_up_group)
        try:
            told: tuple[str, ...] = ray.get(task.remote(seats), timeout=_BURY_SECONDS)
        except RayError as error:
            return (f"what a group left may be there still: {type(error).__name__}",)
        return told

    def close(self) -> None:
        """Ends the actor."""
        ray.kill(self.actor)

    def _ask(self, reference: Any, seconds: float) -> Any:
        """What the actor answers; None if it does not."""
        try:
            answer = ray.get(reference, timeout=seconds)
        except RayError as error:
            silent = time.monotonic() - self._heard > self._seconds
            self.lost |= silent or isinstance(error, RayActorError)
            return None
        self._heard = time.monotonic()
        return answer


class GroupRunner(tune.Trainable):  # type: ignore[misc]  # Ray is untyped
    """Runs trial after trial on a group of workers, until there are no more."""

    def setup(self, config: dict[str, Any]) -> None:
        """Starts without workers: the first trial says how many they must be."""
        self._desk: ActorHandle = config[_DESK]
        self._name: str = config[_GROUP]
        self._kept = WarmGroup()
        self._over = threading.Event()
        self._me = ray.get_runtime_context().current_actor
        threading.Thread(target=self._beat, daemon=True).start()

    def _beat(self) -> None:
        """Says that this process lives, for as long as it does."""
        while True:
            self._desk.beat.remote(self._name, self._me, self.seats())
            if self._over.wait(_BEAT_SECONDS):
                return

    def step(self) -> dict[str, Any]:
        """Waits for a trial, runs it and reports its outcome."""
        try:
            given = ray.get(self._desk.take.remote(self._name, _AGAIN_SECONDS))
        except RayActorError:  # another desk will have other groups
            given = Order.LEAVE
        if isinstance(given, Assignment):
            return {_REPORT: self.run(given), _METRIC: 1}
        if given is Order.RELEASE:
            self._kept.stop()
        return {_METRIC: 0, "done": given is Order.LEAVE}

    def run(self, given: Assignment) -> TrialReport:
        """Runs one trial."""
        return self._kept.run(given)

    def seats(self) -> Sequence[Seat]:
        """Of the workers that it has."""
        return self._kept.seats

    def cleanup(self) -> None:
        """Lets the workers go."""
        self._over.set()
        self._kept.stop()

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Nothing to keep: the study holds it."""


class Watch(tune.Callback):  # type: ignore[misc]  # Ray is untyped
    """Looks after the desk and the runners for as long as Tune runs."""

    def __init__(self, desk: FrontDesk) -> None:
        self._desk = desk

    def on_step_end(self, iteration: int, trials: list[Any], **info: object) -> None:
        """Called by Tune several times a second; what it raises ends Tune."""
        self._desk.look()


class PlanSearcher(Searcher):  # type: ignore[misc]  # Ray is untyped
    """Asks the driver for trials, hands them to groups and tells it how they ended."""

    def __init__(self, driver: AbstractDriver | None, desk: AbstractDesk | None) -> None:
        super().__init__(metric=_METRIC, mode="max")
        self._driver = driver
        self._desk = desk
        self._numbers: dict[str, int] = {}  # of the trial that a group runs
        self._idle: list[str] = []  # groups that wait for one
        self._places: dict[str, Placement] = {}  # where groups have workers

    def __reduce__(self) -> tuple[type[PlanSearcher], tuple[None, None]]:
        # Tune keeps a copy of its searcher beside its results; ours resumes from the study, and
        # the driver holds connections that cannot be copied.
        return (type(self), (None, None))

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        """Another group, which Tune has room for; None if it has nothing to run now."""
        assert self._desk is not None
        given = self._proposed()
        if given is None:
            self._dismiss()
            finished: str = Searcher.FINISHED
            return finished
        if isinstance(given, Later):
            return None
        if self._idle:
            self._hand(given)
            return None
        self._hand(given, trial_id)
        return {_DESK: self._desk.actor, _GROUP: trial_id}

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """Passes a report on, and gives groups that are free their next trial.

        A group that waits reports now and then that it does: there may be room by now.
        """
        assert self._driver is not None
        if _REPORT in result:
            del self._numbers[trial_id]
            if result[_REPORT].lost:
                self._places.pop(trial_id, None)
            self._driver.conclude(result[_REPORT])
            self._idle.append(trial_id)
        while self._idle:
            given = self._proposed()
            if given is None:
                self._dismiss()
            elif isinstance(given, Later):
                return
            else:
                self._hand(given)

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """A group is gone; if it had a trial, its runner died."""
        assert self._driver is not None
        assert self._desk is not None
        left = self._desk.bury(trial_id) if error else ()
        self._places.pop(trial_id, None)
        if trial_id in self._idle:
            self._idle.remove(trial_id)
        if (number := self._numbers.pop(trial_id, None)) is not None:
            self._driver.lose(number, left)

    def lose_all(self) -> None:
        """All groups are gone."""
        for group in {*self._numbers, *self._idle, *self._places}:
            self.on_trial_complete(group, error=True)

    def _proposed(self) -> Assignment | Later | None:
        assert self._driver is not None
        warm = (self._places.get(group) for group in self._idle)
        return self._driver.propose([place for place in warm if place is not None])

    def _hand(self, given: Assignment, started: str | None = None) -> None:
        """Gives a trial to the group that is just started, or to the best of those that wait.

        That is the one whose workers are where it runs, else one whose workers have to go.
        """
        assert self._desk is not None
        leaving = [group for group in self._idle if self._places.get(group) in given.evicted]
        there = [group for group in self._idle if self._places.get(group) == given.placement]
        bare = [group for group in self._idle if group not in self._places]
        group = started or next(iter([*there, *leaving, *bare, *self._idle]))
        for other in leaving:
            del self._places[other]
            if other != group:
                self._desk.put(other, Order.RELEASE)
        if started is None:
            self._idle.remove(group)
        self._numbers[group] = given.request.number
        if given.placement is not None:
            self._places[group] = given.placement
        self._desk.put(group, given)

    def _dismiss(self) -> None:
        """Lets the groups go that wait."""
        assert self._desk is not None
        for group in self._idle:
            self._desk.put(group, Order.LEAVE)
        self._idle.clear()

    def save(self, checkpoint_path: str) -> None:
        """Nothing to keep: the study holds it."""

    def restore(self, checkpoint_path: str) -> None:
        """Nothing to take up: the study holds it."""


def run_trials(
    driver: AbstractDriver,
    at_once: int = 1,
    runner: type[tune.Trainable] = GroupRunner,
    silent_seconds: float = SILENT_SECONDS,
) -> None:
    """Runs trials until the driver has no more.

    Args:
        driver: Who decides.
        at_once: Trials under way at the same time, each on a group of its own.
        runner: Who runs them.
        silent_seconds: After which a runner that is not heard of is ended.

    Raises:
        ClusterError: If what passes trials to groups was lost time and again.
    """
    # of a runner that died it prints a trace; the sweep says what became of its trial
    logging.getLogger("ray.tune.execution.tune_controller").setLevel(logging.CRITICAL)
    _keep_environment()
    for _ in range(_DESKS):
        desk = FrontDesk(silent_seconds)
        searcher = PlanSearcher(driver, desk)
        try:
            with contextlib.suppress(DeskLost):
                _tune(searcher, desk, at_once, runner)
        finally:
            desk.close()
        if not desk.lost:
            return
        searcher.lose_all()
    raise ClusterError(
        f"the actor that passes trials to groups died or hung {_DESKS} times, last on the head"
        " node: see there what ends processes; the same command goes on where the sweep stopped"
    )


def _keep_environment() -> None:
    """Lets runners have the environment of their node, where that is all they need.

    Tune would give them the driver's AWS keys too, by way of a record that Ray logs.
    """
    given = class_cache.ENV_VARS_TO_PROPAGATE
    if is_own_ray():
        given.clear()
        class_cache.DEFAULT_ENV_VARS.clear()
    given.difference_update([name for name in given if name.startswith("AWS_")])


def _tune(
    searcher: PlanSearcher, desk: FrontDesk, at_once: int, runner: type[tune.Trainable]
) -> None:
    with tempfile.TemporaryDirectory(prefix="plimsoll-tune-", dir=session_folder()) as folder:
        tune.Tuner(
            tune.with_resources(runner, HEAD_RESOURCE),
            tune_config=tune.TuneConfig(
                search_alg=searcher, num_samples=-1, max_concurrent_trials=at_once
            ),
            run_config=tune.RunConfig(
                storage_path=folder, name="trials", verbose=0, callbacks=[Watch(desk)]
            ),
        ).fit()
