"""Damaged records of a study: named and left in it, with the rest usable (R6, R9)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import text

from orchestrator.core.records import Record
from orchestrator.report.reasons import note_words
from orchestrator.study.reader import load_records, load_state
from orchestrator.study.storage import open_engine, storage_url
from orchestrator.study.study import Study
from search_spaces.specification.schema import SweepSpec
from tests.orchestrator.records import PROPOSED, make_record
from tests.orchestrator.study.values import NAME, next_plan, open_study, run, started, study_spec
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
