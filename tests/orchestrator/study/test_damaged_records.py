"""Damaged records of a study: named and left in it, with the rest usable (R6, R9)."""

from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import text

from orchestrator.core.events import SweepEnded
from orchestrator.core.reasons import AllTried
from orchestrator.core.records import Record
from orchestrator.report.reasons import note_words
from orchestrator.study.reader import load_provenances, load_records, load_state
from orchestrator.study.serialization import keep_taken_back
from orchestrator.study.storage import open_engine, storage_url
from orchestrator.study.study import Study
from search_spaces.errors import StudyError
from search_spaces.facts import Understanding, planned_cluster
from search_spaces.specification.schema import SweepSpec
from search_spaces.trial import Crashed
from tests.orchestrator.records import LLAMA, PROPOSED, make_record
from tests.orchestrator.study.values import NAME, next_plan, open_study, run, started, study_spec
from tests.orchestrator.tracking.test_mlflow import PROVENANCE
from tests.outcomes import make_measured


@pytest.fixture
def spec(tmp_path: Path) -> SweepSpec:
    return study_spec(tmp_path, "random")


def asked(study: Study, count: int) -> list[Record]:
    """Opens trials; returns the records that they would have."""
    plans = [next_plan(study) for _ in range(count)]
    numbers = [study.ask(plan, PROPOSED) for plan in plans]
    return [
        make_record(number, plan, make_measured(30.0 + number))
        for number, plan in zip(numbers, plans, strict=True)
    ]


def reopened(spec: SweepSpec) -> tuple[Study, list[str]]:
    """A study that another driver opens, and what it says."""
    study = open_study(spec)
    return study, list(map(note_words, started(study).notes))


def test_one_damaged_record_is_named_and_the_rest_is_there(
    spec: SweepSpec, capsys: pytest.CaptureFixture[str]
) -> None:
    damage = '{"number": 1}'
    run(open_study(spec), 3)
    with open_engine(storage_url(spec, NAME)).begin() as connection:
        connection.execute(
            text(
                "UPDATE trial_user_attributes SET value_json = :damage"
                " WHERE key = 'record' AND trial_id = 2"
            ),
            {"damage": damage},
        )

    assert [record.number for record in load_records(spec, NAME)] == [0, 2]
    assert "study small: the record of trial 1 is left out (" in capsys.readouterr().err
    study, said = reopened(spec)
    assert [record.number for record in study.records()] == [0, 2]
    assert "the record of trial 1 is left out" in said[0]
    run(study, 1)
    with open_engine(storage_url(spec, NAME)).connect() as connection:
        kept = connection.execute(
            text("SELECT value_json FROM trial_user_attributes WHERE key='record' AND trial_id=2")
        ).scalar_one()
    assert kept == damage  # it stays for whoever can read it


def test_the_record_of_another_trial_is_left_out(spec: SweepSpec) -> None:
    run(open_study(spec), 3)
    with open_engine(storage_url(spec, NAME)).begin() as connection:
        connection.execute(
            text(
                "UPDATE trial_user_attributes SET value_json = (SELECT value_json FROM"
                " trial_user_attributes WHERE key = 'record' AND trial_id = 1)"
                " WHERE key = 'record' AND trial_id = 2"
            )
        )

    _, said = reopened(spec)

    assert "trial 1 has the record of trial 0" in said[0]
    assert [record.number for record in load_records(spec, NAME)] == [0, 2]


def test_a_damaged_validation_and_trial_are_left_out(spec: SweepSpec) -> None:
    study = open_study(spec)
    run(study, 2)
    first = study.records()[0]
    for seconds in (60.0, 120.0):
        study.keep_validation(replace(first, validation=True, started_at=seconds))
    asked(study, 1)
    with open_engine(storage_url(spec, NAME)).begin() as connection:
        for statement in (
            "UPDATE study_user_attributes SET value_json = '{}' WHERE key LIKE '%at 60.000'",
            "UPDATE trial_user_attributes SET value_json = '{}'"
            " WHERE key = 'plan' AND trial_id = 3",
        ):
            assert connection.execute(text(statement)).rowcount == 1

    assert [one.started_at for one in load_state(spec, NAME).validations] == [120.0]
    study, said = reopened(spec)
    assert study.interrupted() == ()
    assert said[0].startswith("trial 2 is abandoned: its plan cannot be read")


@pytest.mark.parametrize("damage", ["7", "[]", '"x"', "{", "NaN", "[" * 3_000 + "]" * 3_000])
@pytest.mark.parametrize("key", ["ended", "understanding", "provenance", "taken back", "subject"])
def test_n5_a_value_of_the_study_in_another_form_is_left_out(
    key: str, damage: str, spec: SweepSpec, capsys: pytest.CaptureFixture[str]
) -> None:
    study = open_study(spec)
    run(study, 2)
    study.keep_end(SweepEnded(reason=AllTried(plans=2), at=1.0))
    study.keep_provenance(PROVENANCE)
    study.keep_understanding(
        Understanding(data=None, model=LLAMA, cluster=planned_cluster(spec, 2), ranks=2)
    )
    keep_taken_back(study._study, [])
    assert load_state(spec, NAME).ended is not None
    with open_engine(storage_url(spec, NAME)).begin() as connection:
        statement = text("UPDATE study_user_attributes SET value_json = :damage WHERE key = :key")
        changed = connection.execute(statement, {"damage": damage, "key": key}).rowcount
    assert changed == 1

    state = load_state(spec, NAME)
    load_provenances(spec, NAME)

    assert len(state.records) == 2
    assert (state.ended is None) == (key == "ended")
    said = capsys.readouterr().err
    is_readable = damage == "[]" and key in ("provenance", "taken back")
    assert (f"its {key} is left out" in said) == (
        key not in ("taken back", "subject") and not is_readable
    )


def test_n4_half_a_character_in_a_stored_message_can_be_printed(spec: SweepSpec) -> None:
    study = open_study(spec)
    run(study, 1)
    (record,) = asked(study, 1)
    crash = Crashed(cause="exception", rank=0, phase="build", detail="no file caf\udce9.txt")
    study.tell(replace(record, outcome=crash))

    *_, last = load_records(spec, NAME)

    assert last.outcome == replace(crash, detail=r"no file caf\udce9.txt")


def test_n5_a_trial_with_parameters_of_another_form_is_named(spec: SweepSpec) -> None:
    run(open_study(spec), 2)
    with open_engine(storage_url(spec, NAME)).begin() as connection:
        connection.execute(text("UPDATE trial_params SET distribution_json = '7'"))

    with pytest.raises(StudyError, match="trial 0 cannot be read"):
        load_records(spec, NAME)
