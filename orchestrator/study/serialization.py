"""Records as a study keeps them: an attribute of their trial."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import optuna
from optuna.trial import FrozenTrial
from pydantic import TypeAdapter

from orchestrator.core.events import SweepEnded
from search_spaces.facts import Provenance
from search_spaces.trial import Record

RECORD = "record"
_RECORDS: TypeAdapter[Record] = TypeAdapter(Record)
_PREFIX = "validation of trial "
_ENDED, _TRIALS = "ended", "trials"
_KEY = "provenance"
_PROVENANCES: TypeAdapter[tuple[Provenance, ...]] = TypeAdapter(tuple[Provenance, ...])


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


def keep_validation(study: optuna.Study, validation: Record) -> None:
    """Writes a validation down, beside an older one of the same trial; one commit."""
    name = f"{_PREFIX}{validation.number} at {validation.started_at:.3f}"
    study.set_user_attr(name, record_to_json(validation))


def kept_validations(study: optuna.Study) -> tuple[Record, ...]:
    """All that were kept, in the order in which they ended."""
    found = (
        record_from_json(value)
        for name, value in study.user_attrs.items()
        if name.startswith(_PREFIX)
    )
    return tuple(sorted(found, key=lambda validation: validation.ended_at))


def keep_end(study: optuna.Study, ended: SweepEnded) -> None:
    """Writes the end down, in the place of an earlier one; one commit."""
    study.set_user_attr(_ENDED, asdict(ended) | {_TRIALS: len(ended_trials(study))})


def kept_end(study: optuna.Study) -> SweepEnded | None:
    """The end; None if none was kept, or a trial has ended since, which it knows nothing of."""
    kept = study.user_attrs.get(_ENDED)
    if kept is None or kept[_TRIALS] != len(ended_trials(study)):
        return None
    return SweepEnded(**{name: value for name, value in kept.items() if name != _TRIALS})


def keep_provenance(study: optuna.Study, provenance: Provenance) -> None:
    """Adds the provenance of a driver that begins, unless it is that of the one before."""
    kept = kept_provenances(study)
    if kept and replace(provenance, at=kept[-1].at) == kept[-1]:
        return
    study.set_user_attr(_KEY, _PROVENANCES.dump_python((*kept, provenance), mode="json"))


def kept_provenances(study: optuna.Study) -> tuple[Provenance, ...]:
    """The provenances that differ from the one before, oldest first."""
    return _PROVENANCES.validate_python(study.user_attrs.get(_KEY, ()))
