"""Trials under Ray Tune: a Searcher that asks our driver, and a Trainable that owns a group.

Tune schedules; what is tried, and what an outcome means, is decided by the driver
(`orchestrator.trials`). Ray's own OptunaSearch cannot carry constraints, hence the Searcher. With
`reuse_actors` the Trainable's actor, and with it the warm group, outlives the trial.

This is the one module that knows Ray Tune.
"""

from __future__ import annotations

import os
import tempfile
from typing import Any

from ray import tune
from ray.tune.search import Searcher

from orchestrator.ray_groups import KeptGroup
from orchestrator.trials import AbstractDriver, Later

_METRIC = "ended"
# A sliver of a resource that every head node has: the trial's own share must not come out of
# what its workers need (asking for no resource at all is refused by Tune).
_HEAD_SHARE = {"node:__internal_head__": 0.001}
_REQUEST, _REPORT = "request", "report"


class TrialRunner(tune.Trainable):  # type: ignore[misc]  # Ray is untyped
    """Runs one trial a step, on a group of workers that it keeps for the next."""

    def setup(self, config: dict[str, Any]) -> None:
        """Starts without a group: the first trial says how large it must be."""
        self._kept = KeptGroup()

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """The next trial takes over this actor and its group."""
        return True

    def step(self) -> dict[str, Any]:
        """Runs the trial and reports its outcome; the trial is then done."""
        report = self._kept.run(self.config[_REQUEST])
        return {_REPORT: report, _METRIC: 1, "done": True}

    def cleanup(self) -> None:
        """Lets the group go."""
        self._kept.stop()

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Nothing to keep: the study holds it."""


class PlanSearcher(Searcher):  # type: ignore[misc]  # Ray is untyped
    """Asks the driver for the next trial and tells it how trials ended."""

    def __init__(self, driver: AbstractDriver | None) -> None:
        super().__init__(metric=_METRIC, mode="max")
        self._driver = driver
        self._numbers: dict[str, int] = {}

    def __reduce__(self) -> tuple[type[PlanSearcher], tuple[None]]:
        # Tune keeps a copy of its searcher beside its results; ours resumes from the study, and
        # the driver holds connections that cannot be copied.
        return (type(self), (None,))

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        """The next trial's configuration, None if there is none now, or that there is none."""
        assert self._driver is not None
        given = self._driver.propose()
        if given is None:
            finished: str = Searcher.FINISHED
            return finished
        if isinstance(given, Later):
            return None
        self._numbers[trial_id] = given.request.number
        return {_REQUEST: given}

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Passes the report on; without one the runner itself died."""
        assert self._driver is not None
        number = self._numbers.pop(trial_id, None)
        if number is None:
            return
        if result is None or _REPORT not in result:
            self._driver.lose(number)
        else:
            self._driver.conclude(result[_REPORT])

    def save(self, checkpoint_path: str) -> None:
        """Nothing to keep: the study holds it."""

    def restore(self, checkpoint_path: str) -> None:
        """Nothing to take up: the study holds it."""


def run_trials(
    driver: AbstractDriver, at_once: int = 1, runner: type[tune.Trainable] = TrialRunner
) -> None:
    """Runs trials until the driver has no more.

    Args:
        driver: Who decides.
        at_once: Trials under way at the same time, each on a group of its own.
        runner: Who runs them.
    """
    with tempfile.TemporaryDirectory(prefix="plimsoll-tune-") as folder:
        os.environ.setdefault("RAY_CHDIR_TO_TRIAL_DIR", "0")
        tune.Tuner(
            tune.with_resources(runner, _HEAD_SHARE),
            tune_config=tune.TuneConfig(
                search_alg=PlanSearcher(driver),
                num_samples=-1,
                max_concurrent_trials=at_once,
                reuse_actors=True,
            ),
            run_config=tune.RunConfig(storage_path=folder, name="trials", verbose=0),
        ).fit()
