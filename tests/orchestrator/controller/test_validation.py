"""Validations after a search: their choice, their records and their retries.

Reports of groups are scripted and the study is real, as in `test_controller`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.core.events import Noted, SweepEnded, TrialEnded, TrialStarted
from orchestrator.core.instructions import Run
from orchestrator.core.reasons import BudgetSpent, Validates
from orchestrator.study.reader import load_records, load_state
from search_spaces.trial import Cancelled, Crashed, Stopped
from tests.orchestrator.controller.sweeps import Sweep
from tests.orchestrator.records import make_spec
from tests.outcomes import make_measured, make_oom

Make = Callable[..., Sweep]
TRIALS = (make_measured(20.0, 0.3), make_measured(40.0, 0.8), make_measured(39.5, 0.5))


@pytest.fixture
def sweep(tmp_path: Path) -> Make:
    """Returns a function that makes validating drivers on one study."""

    def make(**budget: object) -> Sweep:
        return Sweep(
            make_spec(
                study={"folder": str(tmp_path), "sampler": "random"},
                budget={"trials": 3, "minutes": 10, "trial_seconds": 60, **budget},
                objective={"prefer": "headroom"},
                validation={"enabled": True, "repeats": 0},
            )
        )

    return make


def searched(make: Make, **budget: object) -> Sweep:
    """Runs a sweep up to the end of its search, before any validation."""
    ours = make(**budget)
    for outcome in TRIALS:
        ours.report(ours.ask(), outcome)
    return ours


def assert_validation(run: Run, number: int, *, fresh: bool = True) -> None:
    """Fresh workers replace those that there are; a group without workers starts some anyway."""
    assert run.request.validation
    assert run.fresh is fresh
    assert run.request.number == number
    assert run.request.collective_seconds == run.deadline_seconds


def test_trials_are_no_validations(sweep: Make) -> None:
    run = sweep().ask()

    assert not run.request.validation
    assert not run.fresh


def test_the_best_is_validated_when_the_search_is_over(sweep: Make) -> None:
    ours = searched(sweep)
    run = ours.ask()
    assert_validation(run, 2)
    assert run.request.plan == ours.state.records[2].plan
    ours.report(run, make_measured(39.0, 0.55))

    assert ours.next() is None
    state = ours.state
    assert ours.recorder.kinds[-4:] == [TrialStarted, Noted, TrialEnded, SweepEnded]
    assert [validation.number for validation in state.validations] == [2]
    assert (state.validations[0].validation, state.validations[0].reason) == (
        True,
        Validates(trial=2),
    )
    assert state.best is not None
    assert state.best.number == 2
    assert state.ended is not None
    assert state.ended.reason == BudgetSpent(limit="trials", amount=3)


def test_a_validation_is_no_trial(sweep: Make) -> None:
    ours = searched(sweep)
    untried = len(ours.study.untried())
    ours.report(ours.ask(), make_measured(39.0, 0.55))
    assert ours.next() is None

    assert len(ours.state.records) == 3
    assert len(ours.study.untried()) == untried
    assert len(load_records(ours.spec, "demo")) == 3
    trials = ours.study._study.get_trials()
    assert [trial.value for trial in trials] == [20.0, 40.0, 39.5]
    assert load_state(ours.spec, "demo").validations == ours.state.validations


def test_the_next_plan_is_validated_instead(sweep: Make) -> None:
    ours = searched(sweep)
    ours.report(ours.ask(), make_oom(phase="evaluation"))
    second = ours.ask()
    assert_validation(second, 1)
    ours.lose(second)  # its runner dies
    third = ours.ask()
    assert_validation(third, 0, fresh=False)  # in a new group
    ours.report(third, make_measured(20.0, 0.4))

    assert ours.next() is None
    state = ours.state
    assert state.best is not None
    assert state.best.number == 0
    assert list(state.failed_validations) == [2, 1]
    assert isinstance(state.validations[1].outcome, Crashed)
    assert load_state(ours.spec, "demo").validations == state.validations


def test_a_validation_comes_after_the_minutes_too(sweep: Make) -> None:
    ours = sweep(trials=24, minutes=0.5)
    for outcome in TRIALS:
        ours.report(ours.ask(), outcome)

    run = ours.ask()

    assert_validation(run, 2)
    assert run.deadline_seconds == 180.0  # and no less for the sweep's time being up


def test_a_finished_study_is_not_validated_again(sweep: Make) -> None:
    first = searched(sweep)
    first.report(first.ask(), make_measured(39.0, 0.55))
    assert first.next() is None

    again = sweep()

    assert again.next() is None
    assert again.state.validations == first.state.validations
    assert again.state.validated is not None


def test_validations_that_failed_are_not_run_again(sweep: Make) -> None:
    first = searched(sweep)
    for _ in range(3):
        first.report(first.ask(), make_oom())
    assert first.next() is None

    again = sweep()

    assert again.next() is None
    assert again.state.best is None
    assert len(again.state.failed_validations) == 3


def test_a_validation_that_a_dead_driver_left_is_run_again(sweep: Make) -> None:
    assert_validation(searched(sweep).ask(), 2)

    again = sweep()

    assert again.state.validations == ()
    assert_validation(again.ask(), 2, fresh=False)


def test_a_validation_that_was_stopped_is_run_again(sweep: Make) -> None:
    ours = searched(sweep)
    ours.ask()
    ours.stop("Ctrl-C")
    ended = ours.recorder.heard[-2][0]
    assert isinstance(ended, TrialEnded)
    assert ended.record.outcome == Cancelled(cause=Stopped(by="Ctrl-C"))
    assert ended.record.validation
    assert ours.next() is None

    again = sweep()

    assert len(again.state.records) == 3
    assert_validation(again.ask(), 2, fresh=False)


def test_who_stops_a_search_gets_no_validation(sweep: Make) -> None:
    ours = searched(sweep, trials=9)
    ours.ask()
    ours.stop("SIGTERM")

    assert ours.next() is None
    assert ours.state.validations == ()


def test_a_longer_search_validates_what_it_finds(sweep: Make) -> None:
    first = searched(sweep)
    first.report(first.ask(), make_measured(39.0, 0.55))
    assert first.next() is None

    longer = sweep(trials=4)
    longer.report(longer.ask(), make_measured(80.0, 0.5))

    assert_validation(longer.ask(), 3)


def test_how_it_ended_is_kept_until_another_trial_ends(sweep: Make) -> None:
    ours = searched(sweep)
    assert load_state(ours.spec, "demo").ended is None
    ours.report(ours.ask(), make_measured(39.0, 0.55))

    ended = ours.state.ended
    assert ended is not None
    assert ended.untried == len(ours.state.space.table) - len(TRIALS)
    assert load_state(ours.spec, "demo").ended == ended

    more = sweep(trials=5)
    run = more.ask()
    assert load_state(ours.spec, "demo").ended == ended
    more.report(run, make_measured(10.0, 0.5))
    assert load_state(ours.spec, "demo").ended is None
