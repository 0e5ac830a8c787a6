"""Records as a study keeps them: an attribute of their trial."""

from __future__ import annotations

from typing import Any

import optuna
from optuna.trial import FrozenTrial
from pydantic import TypeAdapter

from search_spaces.record import Record

RECORD = "record"
_RECORDS: TypeAdapter[Record] = TypeAdapter(Record)


def record_to_json(record: Record) -> Any:
    """The record as JSON values."""
    return _RECORDS.dump_python(record, mode="json")


def record_from_json(kept: Any) -> Record:
    """The record that `record_to_json` wrote."""
    return _RECORDS.validate_python(kept)


def record_of(trial: FrozenTrial) -> Record:
    """The record of a trial that has one."""
    return record_from_json(trial.user_attrs[RECORD])


def records_of(study: optuna.Study) -> tuple[Record, ...]:
    """Every trial of a study that ended with a record."""
    return tuple(record_of(trial) for trial in ended_trials(study))


def ended_trials(study: optuna.Study) -> tuple[FrozenTrial, ...]:
    """The trials of a study that ended with a record."""
    return tuple(
        trial
        for trial in study.get_trials(deepcopy=False)
        if trial.state.is_finished() and RECORD in trial.user_attrs
    )
