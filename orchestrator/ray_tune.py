"""Trials under Ray Tune: a Searcher that asks our driver, and a Trainable that owns a group.

Tune schedules; what is tried, and what an outcome means, is decided by the driver
(`orchestrator.trials`). Ray's own OptunaSearch cannot carry constraints, hence the Searcher. To
Tune, a trial is the life of one group of workers, and each plan that runs on it one more result:
see decision 19.

This is the one module that knows Ray Tune.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections import defaultdict
from typing import Any

import ray
from ray import tune
from ray.actor import ActorHandle
from ray.tune.search import Searcher

from orchestrator.ray_groups import KeptGroup
from orchestrator.trials import AbstractDriver, Assignment, Later, TrialReport

_METRIC = "ended"
# A sliver of a resource that every head node has: the trial's own share must not come out of
# what its workers need (asking for no resource at all is refused by Tune).
_HEAD_SHARE = {"node:__internal_head__": 0.001}
_DESK, _GROUP, _REPORT = "desk", "group", "report"


class Desk:
    """Where groups get their next trial."""

    def __init__(self) -> None:
        self._given: defaultdict[str, asyncio.Queue[Assignment | None]] = defaultdict(asyncio.Queue)

    async def put(self, group: str, given: Assignment | None) -> None:
        """Lays down a group's next trial; None: there is none."""
        self._given[group].put_nowait(given)

    async def take(self, group: str) -> Assignment | None:
        """Waits for it."""
        return await self._given[group].get()


class GroupRunner(tune.Trainable):  # type: ignore[misc]  # Ray is untyped
    """Runs trial after trial on a group of workers, until there are no more."""

    def setup(self, config: dict[str, Any]) -> None:
        """Starts without workers: the first trial says how many they must be."""
        self._desk: ActorHandle = config[_DESK]
        self._name: str = config[_GROUP]
        self._kept = KeptGroup()

    def step(self) -> dict[str, Any]:
        """Waits for a trial, runs it and reports its outcome."""
        given = ray.get(self._desk.take.remote(self._name))
        if given is None:
            return {_METRIC: 0, "done": True}
        return {_REPORT: self.run(given), _METRIC: 1}

    def run(self, given: Assignment) -> TrialReport:
        """Runs one trial."""
        return self._kept.run(given)

    def cleanup(self) -> None:
        """Lets the workers go."""
        self._kept.stop()

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Nothing to keep: the study holds it."""


class PlanSearcher(Searcher):  # type: ignore[misc]  # Ray is untyped
    """Asks the driver for trials, hands them to groups and tells it how they ended."""

    def __init__(self, driver: AbstractDriver | None, desk: ActorHandle | None) -> None:
        super().__init__(metric=_METRIC, mode="max")
        self._driver = driver
        self._desk = desk
        self._numbers: dict[str, int] = {}  # of the trial that a group runs
        self._idle: list[str] = []  # groups that wait for one

    def __reduce__(self) -> tuple[type[PlanSearcher], tuple[None, None]]:
        # Tune keeps a copy of its searcher beside its results; ours resumes from the study, and
        # the driver holds connections that cannot be copied.
        return (type(self), (None, None))

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        """Another group, which Tune has room for; None if it has nothing to run now."""
        assert self._driver is not None
        given = self._driver.propose()
        if given is None:
            self._dismiss()
            finished: str = Searcher.FINISHED
            return finished
        if isinstance(given, Later):
            return None
        self._hand(trial_id, given)
        return {_DESK: self._desk, _GROUP: trial_id}

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """Passes a report on, and gives groups that are free their next trial."""
        assert self._driver is not None
        if _REPORT not in result:
            return
        del self._numbers[trial_id]
        self._driver.conclude(result[_REPORT])
        self._idle.append(trial_id)
        while self._idle:
            given = self._driver.propose()
            if given is None:
                self._dismiss()
            elif isinstance(given, Later):
                return
            else:
                self._hand(self._idle.pop(), given)

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """A group is gone; if it had a trial, its runner died."""
        assert self._driver is not None
        if trial_id in self._idle:
            self._idle.remove(trial_id)
        if (number := self._numbers.pop(trial_id, None)) is not None:
            self._driver.lose(number)

    def _hand(self, group: str, given: Assignment) -> None:
        assert self._desk is not None
        self._numbers[group] = given.request.number
        self._desk.put.remote(group, given)

    def _dismiss(self) -> None:
        """Lets the groups go that wait."""
        assert self._desk is not None
        for group in self._idle:
            self._desk.put.remote(group, None)
        self._idle.clear()

    def save(self, checkpoint_path: str) -> None:
        """Nothing to keep: the study holds it."""

    def restore(self, checkpoint_path: str) -> None:
        """Nothing to take up: the study holds it."""


def run_trials(
    driver: AbstractDriver, at_once: int = 1, runner: type[tune.Trainable] = GroupRunner
) -> None:
    """Runs trials until the driver has no more.

    Args:
        driver: Who decides.
        at_once: Trials under way at the same time, each on a group of its own.
        runner: Who runs them.
    """
    os.environ.setdefault("RAY_CHDIR_TO_TRIAL_DIR", "0")
    desk = ray.remote(num_cpus=0, resources=_HEAD_SHARE)(Desk).remote()
    try:
        with tempfile.TemporaryDirectory(prefix="plimsoll-tune-") as folder:
            tune.Tuner(
                tune.with_resources(runner, _HEAD_SHARE),
                tune_config=tune.TuneConfig(
                    search_alg=PlanSearcher(driver, desk),
                    num_samples=-1,
                    max_concurrent_trials=at_once,
                ),
                run_config=tune.RunConfig(storage_path=folder, name="trials", verbose=0),
            ).fit()
    finally:
        ray.kill(desk)
