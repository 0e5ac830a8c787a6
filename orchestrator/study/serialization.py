"""Records, validations, the end and provenance as attributes of an Optuna study and its trials."""

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any, TypeVar

import optuna
from optuna.trial import FrozenTrial
from pydantic import TypeAdapter, ValidationError

from orchestrator.core.events import SweepEnded
from orchestrator.core.records import Record
from search_spaces.errors import StudyError, UserError
from search_spaces.facts import Provenance, Understanding

RECORD = "record"
_RECORDS: TypeAdapter[Record] = TypeAdapter(Record)
_ENDS: TypeAdapter[SweepEnded | None] = TypeAdapter(SweepEnded)
_PREFIX = "validation of trial "
_ENDED, _TRIALS = "ended", "trials"
_PROVENANCE = "provenance"
_TAKEN_BACK = "taken back"
_UNDERSTANDING = "understanding"
_UNDERSTANDINGS: TypeAdapter[Understanding | None] = TypeAdapter(Understanding)
_PROVENANCES: TypeAdapter[tuple[Provenance, ...]] = TypeAdapter(tuple[Provenance, ...])
_NUMBERS: TypeAdapter[tuple[int, ...]] = TypeAdapter(tuple[int, ...])
_UNREADABLE = (ValidationError, UserError, TypeError, ArithmeticError)  # some of values' own checks
Say = Callable[[str], None] | None
Stored = TypeVar("Stored")


def record_to_json(record: Record) -> Any:
    """Returns a record as JSON values."""
    return _RECORDS.dump_python(record, mode="json")


class UnreadableRecord(StudyError):
    """A record in another form, of another version or damaged."""


def record_from_json(kept: Any) -> Record:
    """Returns the record that `record_to_json` converted.

    Raises:
        UnreadableRecord: If another version of Plimsoll wrote it in another form.
    """
    try:
        return _RECORDS.validate_python(kept)
    except _UNREADABLE as error:
        raise UnreadableRecord(
            "another version of Plimsoll wrote the study's records: this one cannot read"
            f" {_where(error)}; choose another study.name, or use the version that wrote it"
        ) from error


def _where(error: Exception) -> str:
    places = error.errors()[0]["loc"] if isinstance(error, ValidationError) else ()
    return ".".join(map(str, places)) or "it"


def _stored(
    study: optuna.Study, name: str, adapter: TypeAdapter[Stored], default: Stored, say: Say = None
) -> Stored:
    """Returns a stored value; the default if there is none, or none that can be read."""
    attributes = study.user_attrs
    try:
        return adapter.validate_python(attributes[name]) if name in attributes else default
    except _UNREADABLE as error:
        if say is not None:
            say(f"study {study.study_name}: its {name} is left out (cannot read {_where(error)})")
        return default


def record_of(trial: FrozenTrial) -> Record:
    """Returns the record of a trial that has one.

    Raises:
        UnreadableRecord: If it is in another form, or of another trial.
    """
    record = record_from_json(trial.user_attrs[RECORD])
    if record.number != trial.number:
        raise UnreadableRecord(f"trial {trial.number} has the record of trial {record.number}")
    return record


def records_of(study: optuna.Study, say: Say = None) -> tuple[Record, ...]:
    """Returns the records of all trials that ended with one, except those that cannot be read.

    Args:
        study: The study; what cannot be read stays in it.
        say: Receives a sentence for each record that is left out.

    Raises:
        UnreadableRecord: If there are records, and none can be read.
    """
    records, unreadable = [], dict[int, UnreadableRecord]()
    for trial in ended_trials(study):
        try:
            records.append(record_of(trial))
        except UnreadableRecord as error:
            unreadable[trial.number] = error
    if unreadable and not records:
        raise next(iter(unreadable.values()))
    if say is not None:
        for number, reason in unreadable.items():
            say(f"study {study.study_name}: the record of trial {number} is left out ({reason})")
    return tuple(records)


def ended_trials(study: optuna.Study) -> tuple[FrozenTrial, ...]:
    """Returns the trials of a study that ended with a record, without those taken back."""
    taken_back = _stored(study, _TAKEN_BACK, _NUMBERS, ())
    return tuple(
        trial
        for trial in study.get_trials(deepcopy=False)
        if trial.state.is_finished()
        and RECORD in trial.user_attrs
        and trial.number not in taken_back
    )


def keep_taken_back(study: optuna.Study, numbers: Collection[int]) -> None:
    """Stores that the results of these trials do not count any more. One commit."""
    earlier = _stored(study, _TAKEN_BACK, _NUMBERS, ())
    study.set_user_attr(_TAKEN_BACK, sorted({*earlier, *numbers}))


def keep_validation(study: optuna.Study, validation: Record) -> None:
    """Stores a validation; keeps an older one of the same trial. One commit."""
    name = f"{_PREFIX}{validation.number} at {validation.started_at:.3f}"
    study.set_user_attr(name, record_to_json(validation))


def kept_validations(study: optuna.Study, say: Say = None) -> tuple[Record, ...]:
    """Returns all validations of a study that can be read, in the order in which they ended."""
    validations = []
    for name, value in study.user_attrs.items():
        if name.startswith(_PREFIX):
            try:
                validations.append(record_from_json(value))
            except UnreadableRecord as error:
                if say is not None:
                    say(f"study {study.study_name}: the {name} is left out ({error})")
    return tuple(sorted(validations, key=lambda validation: validation.ended_at))


def keep_end(study: optuna.Study, ended: SweepEnded) -> None:
    """Stores the end of a sweep in place of an earlier one. One commit."""
    study.set_user_attr(
        _ENDED, _ENDS.dump_python(ended, mode="json") | {_TRIALS: len(ended_trials(study))}
    )


def kept_end(study: optuna.Study, say: Say = None) -> SweepEnded | None:
    """Returns the stored end of a sweep.

    None if there is none that can be read, or a trial has ended since.
    """
    ended = _stored(study, _ENDED, _ENDS, None, say)
    is_last = ended and study.user_attrs[_ENDED].get(_TRIALS) == len(ended_trials(study))
    return ended if is_last else None


def keep_understanding(study: optuna.Study, understanding: Understanding) -> None:
    """Stores how the job is understood, so that readers of the study need not run its code."""
    content = _UNDERSTANDINGS.dump_python(understanding, mode="json")
    study.set_user_attr(_UNDERSTANDING, content)


def kept_understanding(study: optuna.Study, say: Say = None) -> Understanding | None:
    """Returns how the job is understood; None if that is not stored, or cannot be read."""
    return _stored(study, _UNDERSTANDING, _UNDERSTANDINGS, None, say)


def keep_provenance(study: optuna.Study, provenance: Provenance) -> None:
    """Adds the provenance of a driver that starts, unless it equals that of the one before."""
    earlier = kept_provenances(study)
    if earlier and replace(provenance, at=earlier[-1].at) == earlier[-1]:
        return
    study.set_user_attr(_PROVENANCE, _PROVENANCES.dump_python((*earlier, provenance), mode="json"))


def kept_provenances(study: optuna.Study, say: Say = None) -> tuple[Provenance, ...]:
    """Returns the provenances of a study's drivers, oldest first; equal neighbours count once.

    Empty if they cannot be read.
    """
    return _stored(study, _PROVENANCE, _PROVENANCES, (), say)
