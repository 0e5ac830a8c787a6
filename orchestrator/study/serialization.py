"""Records, validations, the end and provenance as attributes of an Optuna study and its trials."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import optuna
from optuna.trial import FrozenTrial
from pydantic import TypeAdapter, ValidationError

from orchestrator.core.events import SweepEnded
from orchestrator.core.records import Record
from search_spaces.errors import StudyError
from search_spaces.facts import Provenance

RECORD = "record"
_RECORDS: TypeAdapter[Record] = TypeAdapter(Record)
_ENDS: TypeAdapter[SweepEnded] = TypeAdapter(SweepEnded)
_PREFIX = "validation of trial "
_ENDED, _TRIALS = "ended", "trials"
_PROVENANCE = "provenance"
_PROVENANCES: TypeAdapter[tuple[Provenance, ...]] = TypeAdapter(tuple[Provenance, ...])


def record_to_json(record: Record) -> Any:
    """Returns a record as JSON values."""
    return _RECORDS.dump_python(record, mode="json")


def record_from_json(kept: Any) -> Record:
    """Returns the record that `record_to_json` converted.

    Raises:
        StudyError: If another version of Plimsoll wrote it in another form.
    """
    try:
        return _RECORDS.validate_python(kept)
    except ValidationError as error:
        where = ".".join(map(str, error.errors()[0]["loc"]))
        raise StudyError(
            "another version of Plimsoll wrote the study's records: this one cannot read"
            f" {where}; choose another study.name, or use the version that wrote it"
        ) from error


def record_of(trial: FrozenTrial) -> Record:
    """Returns the record of a trial that has one."""
    return record_from_json(trial.user_attrs[RECORD])


def records_of(study: optuna.Study) -> tuple[Record, ...]:
    """Returns the records of all trials that ended with one."""
    return tuple(record_of(trial) for trial in ended_trials(study))


def ended_trials(study: optuna.Study) -> tuple[FrozenTrial, ...]:
    """Returns the trials of a study that ended with a record."""
    return tuple(
        trial
        for trial in study.get_trials(deepcopy=False)
        if trial.state.is_finished() and RECORD in trial.user_attrs
    )


def keep_validation(study: optuna.Study, validation: Record) -> None:
    """Stores a validation; keeps an older one of the same trial. One commit."""
    name = f"{_PREFIX}{validation.number} at {validation.started_at:.3f}"
    study.set_user_attr(name, record_to_json(validation))


def kept_validations(study: optuna.Study) -> tuple[Record, ...]:
    """Returns all validations of a study, in the order in which they ended."""
    validations = (
        record_from_json(value)
        for name, value in study.user_attrs.items()
        if name.startswith(_PREFIX)
    )
    return tuple(sorted(validations, key=lambda validation: validation.ended_at))


def keep_end(study: optuna.Study, ended: SweepEnded) -> None:
    """Stores the end of a sweep in place of an earlier one. One commit."""
    study.set_user_attr(
        _ENDED, _ENDS.dump_python(ended, mode="json") | {_TRIALS: len(ended_trials(study))}
    )


def kept_end(study: optuna.Study) -> SweepEnded | None:
    """Returns the stored end of a sweep.

    None if there is none, another version wrote it, or a trial has ended since.
    """
    stored = study.user_attrs.get(_ENDED)
    if stored is None or stored[_TRIALS] != len(ended_trials(study)):
        return None
    ended = {name: value for name, value in stored.items() if name != _TRIALS}
    try:
        return _ENDS.validate_python(ended)
    except ValidationError:
        return None


def keep_provenance(study: optuna.Study, provenance: Provenance) -> None:
    """Adds the provenance of a driver that starts, unless it equals that of the one before."""
    earlier = kept_provenances(study)
    if earlier and replace(provenance, at=earlier[-1].at) == earlier[-1]:
        return
    study.set_user_attr(_PROVENANCE, _PROVENANCES.dump_python((*earlier, provenance), mode="json"))


def kept_provenances(study: optuna.Study) -> tuple[Provenance, ...]:
    """Returns the provenances of a study's drivers, oldest first; equal neighbours count once."""
    return _PROVENANCES.validate_python(study.user_attrs.get(_PROVENANCE, ()))
