"""Trials under Ray Tune: a Searcher that asks our driver, and a Trainable that owns a group.

Tune schedules; what is tried, and what an outcome means, is decided by the driver
(`orchestrator.trials`). Ray's own OptunaSearch cannot carry constraints, hence the Searcher. With
`reuse_actors` the Trainable's actor, and with it the warm group, outlives the trial.

This is the one module that knows Ray Tune.
"""

from __future__ import annotations

import os
import tempfile
import time
from typing import Any

from ray import tune
from ray.tune.search import Searcher

from orchestrator.core.endings import reason_to_replace
from orchestrator.core.processes import Processes, reason_to_change
from orchestrator.ray_train import GroupLost, WorkerGroup
from orchestrator.trials import AbstractDriver, Assignment, TrialReport
from search_spaces.record import Fingerprint

_METRIC = "ended"
# A sliver of a resource that every head node has: the trial's own share must not come out of
# what its workers need (asking for no resource at all is refused by Tune).
_HEAD_SHARE = {"node:__internal_head__": 0.001}
_REQUEST, _REPORT = "request", "report"


class TrialRunner(tune.Trainable):  # type: ignore[misc]  # Ray is untyped
    """Runs one trial a step, on a group of workers that it keeps for the next."""

    def setup(self, config: dict[str, Any]) -> None:
        """Starts without a group: the first trial says how large it must be."""
        self._group: WorkerGroup | None = None

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """The next trial takes over this actor and its group."""
        return True

    def step(self) -> dict[str, Any]:
        """Runs the trial and reports its outcome; the trial is then done."""
        report = self._run(self.config[_REQUEST])
        return {_REPORT: report, _METRIC: 1, "done": True}

    def cleanup(self) -> None:
        """Lets the group go."""
        if self._group is not None:
            self._group.stop()

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Nothing to keep: the study holds it."""

    def _run(self, given: Assignment) -> TrialReport:
        notes: list[str] = []
        started_at = time.time()
        seen: Fingerprint | None = None
        try:
            group = self._group_for(given, notes)
            seen = group.fingerprint
            outcome = group.run(given.request, given.deadline_seconds)
            if reason := reason_to_replace(outcome):
                notes.append(f"the worker group is replaced: {reason}")
                self._group = None
                group.stop()
        except GroupLost as lost:
            outcome, self._group = lost.outcome, None
            reason = reason_to_replace(outcome) or "its workers are gone"
            notes.append(f"the worker group is replaced: {reason}")
        return TrialReport(
            number=given.request.number,
            outcome=outcome,
            fingerprint=seen,
            notes=tuple(notes),
            started_at=started_at,
            ended_at=time.time(),
        )

    def _group_for(self, given: Assignment, notes: list[str]) -> WorkerGroup:
        needed = Processes.of(given.request.plan, given.device)
        there = self._group
        if there and (reason := reason_to_change(needed, there.processes, fresh=given.fresh)):
            notes.append(f"the worker group is replaced: {reason}")
            there.stop()
            self._group = None
        if self._group is None:
            self._group = WorkerGroup(given.request.spec, needed, given.device, given.folder)
        return self._group


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

    def suggest(self, trial_id: str) -> dict[str, Any] | str:
        """The next trial's configuration, or that there is none."""
        assert self._driver is not None
        given = self._driver.propose()
        if given is None:
            finished: str = Searcher.FINISHED
            return finished
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


def run_trials(driver: AbstractDriver) -> None:
    """Runs trials until the driver has no more, one after the other."""
    with tempfile.TemporaryDirectory(prefix="plimsoll-tune-") as folder:
        os.environ.setdefault("RAY_CHDIR_TO_TRIAL_DIR", "0")
        tune.Tuner(
            tune.with_resources(TrialRunner, _HEAD_SHARE),
            tune_config=tune.TuneConfig(
                search_alg=PlanSearcher(driver),
                num_samples=-1,
                max_concurrent_trials=1,
                reuse_actors=True,
            ),
            run_config=tune.RunConfig(storage_path=folder, name="trials", verbose=0),
        ).fit()
