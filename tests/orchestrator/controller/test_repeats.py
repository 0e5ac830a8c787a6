"""Repeats of the leading plans after a search, with a real study."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.core.controller_state import Phase
from orchestrator.core.events import SweepEnded, TrialStarted
from orchestrator.core.reasons import Remeasures
from orchestrator.core.records import Record
from orchestrator.study.reader import load_records
from search_spaces.plan import Plan
from search_spaces.trial import Measured, Outcome
from tests.orchestrator.controller.sweeps import DIED, Sweep
from tests.orchestrator.records import make_spec
from tests.outcomes import make_measured

Make = Callable[..., Sweep]
TRIALS = (make_measured(20.0), make_measured(50.0), make_measured(42.0))


@pytest.fixture
def sweep(tmp_path: Path) -> Make:
    """Returns a function that makes drivers on one study; leaders are measured again."""

    def make(sampler: str = "plimsoll", **budget: object) -> Sweep:
        return Sweep(
            make_spec(
                study={"folder": str(tmp_path), "sampler": sampler},
                budget={"trials": 3, "minutes": 10, "trial_seconds": 60, **budget},
                validation={"enabled": True, "repeats": 6},
            )
        )

    return make


def searched(ours: Sweep) -> dict[Plan, float]:
    """Runs the search; returns the speed of each plan."""
    rates = {}
    for outcome in TRIALS:
        run = ours.ask()
        rates[run.request.plan] = outcome.samples_per_second.value
        ours.report(run, outcome)
    return rates


def repeats(ours: Sweep) -> list[TrialStarted]:
    return [event for event in ours.events(TrialStarted) if event.is_repeat]


def rate_of(record: Record) -> float:
    assert isinstance(record.outcome, Measured)
    return record.outcome.samples_per_second.value


@pytest.mark.parametrize("sampler", ["plimsoll", "random"])
def test_a_lucky_trial_is_found_out(sweep: Make, sampler: str) -> None:
    """The fastest trial of the search was 40 % too fast."""
    ours = sweep(sampler)
    rates = searched(ours)
    lucky = next(plan for plan, rate in rates.items() if rate == 50.0)
    while (run := ours.next()) is not None and not run.request.validation:
        assert run.request.incumbent is None  # it is measured to the end
        rate = 36.0 if run.request.plan == lucky else rates[run.request.plan]
        ours.report(run, make_measured(rate))

    assert run is not None
    assert rates[run.request.plan] == 42.0
    ours.report(run, make_measured(41.8))
    assert ours.next() is None
    assert ours.phase is Phase.DONE
    assert 3 <= len(repeats(ours)) <= 6
    assert ours.state.best is not None
    assert ours.state.best.plan == run.request.plan
    assert rate_of(ours.state.best) == pytest.approx(42.0, rel=0.01)


@pytest.mark.parametrize(("precision", "perturbed"), [("bf16", True), ("fp32", False)])
def test_in_16_bits_a_repeat_begins_with_weights_that_are_rounded_otherwise(
    tmp_path: Path, precision: str, perturbed: bool
) -> None:
    spec = make_spec(
        study={"folder": str(tmp_path), "sampler": "random"},
        budget={"trials": 3, "minutes": 10, "trial_seconds": 60},
        validation={"enabled": True, "repeats": 6},
        train={"global_batch": 16, "sequence_length": 128, "precision": precision},
        space={"precision": [precision], "attention": ["sdpa"]},
    )
    ours = Sweep(spec)
    for outcome in TRIALS:
        run = ours.ask()
        assert not run.request.perturbed
        ours.report(run, outcome)

    assert ours.ask().request.perturbed is perturbed


def test_repeats_are_trials_that_no_budget_counts(sweep: Make) -> None:
    ours = sweep(minutes=0.6)
    rates = searched(ours)
    untried = len(ours.study.untried())
    run = ours.ask()
    ours.report(run, make_measured(rates[run.request.plan]))

    assert ours.phase is not Phase.SEARCHING
    assert run.request.number == 3
    assert run.deadline_seconds == 60.0  # though the time of the sweep is up
    assert len(ours.study.untried()) == untried
    stored = load_records(ours.spec, "demo")
    assert isinstance(stored[-1].reason, Remeasures)
    assert stored[-1].plan == stored[stored[-1].reason.trial].plan


@pytest.mark.parametrize("outcome", [None, DIED])
def test_a_repeat_that_its_group_took_along_is_chosen_anew(
    sweep: Make, outcome: Outcome | None
) -> None:
    ours = sweep()
    searched(ours)
    first = ours.ask()
    if outcome is None:
        ours.lose(first)
    else:
        ours.report(first, outcome)

    second = ours.ask()

    assert second.request.plan != first.request.plan
    assert not any(record.plan == first.request.plan for record in ours.state.records[3:-1])
    assert [record.number for record in load_records(ours.spec, "demo")] == [0, 1, 2]


def test_a_driver_that_dies_during_repeats_is_followed_by_one_that_goes_on(sweep: Make) -> None:
    ours = sweep()
    rates = searched(ours)
    done = ours.ask()
    ours.report(done, make_measured(rates[done.request.plan]))
    under_way = ours.ask()

    again = sweep()
    untried = len(again.study.untried())
    run = again.ask()

    assert run.request.plan == under_way.request.plan
    assert len(again.study.untried()) == untried
    while (following := again.next()) is not None:
        again.report(following, make_measured(rates[following.request.plan]))
    again.report(run, make_measured(rates[run.request.plan]))
    while (following := again.next()) is not None:
        again.report(following, make_measured(rates[following.request.plan]))
    assert again.recorder.kinds[-1] is SweepEnded
    assert len(again.study.untried()) == untried


def test_a_finished_sweep_repeats_nothing(sweep: Make) -> None:
    ours = sweep()
    rates = searched(ours)
    while (run := ours.next()) is not None:
        ours.report(run, make_measured(rates[run.request.plan]))
    assert ours.phase is Phase.DONE

    again = sweep()

    assert again.next() is None
    assert repeats(again) == []


def test_a_longer_search_has_its_whole_budget_after_repeats(sweep: Make) -> None:
    ours = sweep()
    rates = searched(ours)
    while (run := ours.next()) is not None:
        ours.report(run, make_measured(rates[run.request.plan]))
    assert len(repeats(ours)) >= 3

    longer = sweep(trials=5)
    tried = [longer.ask()]
    longer.report(tried[0], make_measured(10.0))
    tried.append(longer.ask())

    assert repeats(longer) == []
    assert not {run.request.plan for run in tried} & set(rates)
