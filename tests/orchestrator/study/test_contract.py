"""Contract of a study's storage, the same for SQLite and PostgreSQL."""

from dataclasses import replace

import optuna
import pytest
from optuna.trial import TrialState

from orchestrator.core.events import SweepEnded
from orchestrator.core.reasons import AllTried, Retry
from orchestrator.study.reader import load_records, load_state
from orchestrator.study.storage import opened_storage, storage_url
from search_spaces.specification.schema import SweepSpec
from search_spaces.trial import DriverDied, Measured
from tests.orchestrator.records import PROPOSED, make_record
from tests.orchestrator.study.values import NAME, next_plan, open_study, run
from tests.outcomes import every_outcome


def states(spec: SweepSpec) -> list[TrialState]:
    """Returns the trials as Optuna alone sees them."""
    with opened_storage(storage_url(spec, NAME)) as storage:
        study = optuna.load_study(study_name=NAME, storage=storage)
        return [trial.state for trial in study.get_trials()]


def test_every_outcome_comes_back_as_it_was_told(spec: SweepSpec) -> None:
    study = open_study(spec)
    for outcome in every_outcome():
        plan = next_plan(study)
        number = study.ask(plan, PROPOSED)
        study.tell(make_record(number, plan, outcome))

    assert [record.outcome for record in load_records(spec, NAME)] == list(every_outcome())
    measured, failed, ran_out = TrialState.COMPLETE, TrialState.FAIL, TrialState.PRUNED
    assert states(spec) == [
        *[measured, ran_out, measured, measured, measured],
        *[failed, failed, failed, ran_out, failed, failed, failed],
    ]


@pytest.mark.parametrize("sampler", ["plimsoll", "tpe", "gp"])
def test_a_study_goes_on_where_it_stopped(sampler: str, spec: SweepSpec) -> None:
    sampled = spec.model_copy(update={"study": spec.study.model_copy(update={"sampler": sampler})})
    before = run(open_study(sampled), 4)

    second = open_study(sampled)
    after = run(second, 2)

    assert not set(before) & set(after)
    assert [record.number for record in second.records()] == list(range(6))


def test_a_trial_under_way_when_its_driver_died_is_offered_once_more(spec: SweepSpec) -> None:
    study = open_study(spec)
    plan = next_plan(study)
    number = study.ask(plan, PROPOSED)  # and the driver is gone

    second = open_study(spec)
    (left,) = second.interrupted()
    assert (left.number, left.plan, left.reason) == (number, plan, PROPOSED)
    second.abandon(left.number)
    second.ask(left.plan, Retry(trial=left.number, cause=DriverDied()))  # and gone again

    (again,) = open_study(spec).interrupted()
    assert (again.plan, again.reason) == (plan, Retry(trial=number, cause=DriverDied()))


def test_validations_and_the_end_are_kept(spec: SweepSpec) -> None:
    study = open_study(spec)
    run(study, 2)
    (first, _) = study.records()
    assert isinstance(first.outcome, Measured)
    validation = replace(first, validation=True, ended_at=first.ended_at + 60)
    again = replace(validation, started_at=validation.ended_at, ended_at=validation.ended_at + 60)
    for each in (validation, validation, again):  # a write that is tried again is one write
        study.keep_validation(each)
    reason = AllTried(plans=2)
    ended = SweepEnded(reason=reason, at=validation.ended_at, regret_bound=1.02, untried=7)
    study.keep_end(ended)

    assert load_state(spec, NAME).validations == (validation, again)
    assert open_study(spec).validations() == (validation, again)
    assert load_state(spec, NAME).ended == ended
