"""One Optuna study as the truth of a sweep: asked for plans, told how they ended."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
from optuna.exceptions import StorageInternalError
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial, Trial, TrialState
from pydantic import TypeAdapter
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from orchestrator.study.parameters import distributions, parameters
from orchestrator.study.sampler import CandidateSampler, make_sampler
from search_spaces.errors import StudyError
from search_spaces.outcome import Measured, Outcome, OutOfMemory
from search_spaces.plan import Plan
from search_spaces.record import Record
from search_spaces.space import Space
from search_spaces.spec.schema import SweepSpec

_PLAN, _WHY, _RECORD, _RETRY, _SUBJECT = "plan", "why", "record", "retry_of", "subject"
_CONSTRAINT = "memory"  # peak over the limit less head-room, less 1: feasible at 0 or below
_RECORDS: TypeAdapter[Record] = TypeAdapter(Record)
_BUSY_SECONDS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A trial that the study opened."""

    number: int
    plan: Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Interrupted:
    """A trial that was under way when its driver died."""

    number: int
    plan: Plan
    retry_of: int | None  # the trial of which it was the second try


def storage_url(spec: SweepSpec, name: str) -> str:
    """Where the study is kept: the spec's storage, or SQLite in the study's own folder."""
    return spec.study.storage or f"sqlite:///{Path(spec.study.folder, name, 'study.db')}"


def load_records(spec: SweepSpec, name: str) -> tuple[Record, ...]:
    """What a study holds, for reports.

    Raises:
        StudyError: If there is no such study, or its storage cannot be opened.
    """
    url = storage_url(spec, name)
    if url.startswith("sqlite:///") and not Path(url.removeprefix("sqlite:///")).exists():
        raise StudyError(f"there is no study {name} yet: {url} does not exist; run plimsoll tune")
    with _storage_errors(url):
        storage = _open_storage(url)
        try:
            study = optuna.load_study(study_name=name, storage=storage)
        except KeyError as error:
            raise StudyError(f"{url} holds no study {name}; run plimsoll tune") from error
        return _records(study)


class Study:
    """The trials of one sweep. Not safe for two drivers at once."""

    def __init__(self, spec: SweepSpec, name: str, space: Space) -> None:
        """Opens the study, or makes it.

        Raises:
            StudyError: If the storage cannot be opened, or the study measured another job.
        """
        self._space = space
        self._headroom = spec.objective.headroom
        self._searched = distributions(space)
        self._candidates = set(space.candidates)
        self._taken: set[Plan] = set()
        self._open: dict[int, Trial] = {}
        url = storage_url(spec, name)
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        sampler = CandidateSampler(
            make_sampler(spec.study.sampler, spec.study.seed),
            self._searched,
            self.untried,
            spec.study.seed,
        )
        with _storage_errors(url):
            self._study = optuna.create_study(
                study_name=name,
                storage=_open_storage(url),
                direction="maximize",
                sampler=sampler,
                load_if_exists=True,
            )
            _check_subject(self._study, spec, name)
            self._taken = {record.plan for record in self.records()}

    def records(self) -> tuple[Record, ...]:
        """Every trial that ended with a record, by number."""
        return _records(self._study)

    def untried(self) -> tuple[Plan, ...]:
        """Candidates of which no trial has ended or is under way, in the space's order."""
        return tuple(plan for plan in self._space.candidates if plan not in self._taken)

    def ask(self, plan: Plan | None, why: str, retry_of: int | None = None) -> Asked:
        """Opens a trial of this plan, or of whichever the sampler proposes."""
        if plan is not None:
            self._study.enqueue_trial(parameters(plan, self._searched))
        trial = self._study.ask(self._searched)
        chosen = plan or self._plan_of(trial.params)
        self._taken.add(chosen)
        self._open[trial.number] = trial
        attributes: dict[str, Any] = {_PLAN: chosen.as_dict(), _WHY: why}
        if retry_of is not None:
            attributes[_RETRY] = retry_of
        for key, value in attributes.items():
            trial.set_user_attr(key, value)
        return Asked(number=trial.number, plan=chosen)

    def tell(self, record: Record) -> None:
        """Closes a trial with its record.

        Out of memory is a broken constraint of a trial without a value (samplers skip failed
        trials, and would forget it); what says nothing of the space is a failure.
        """
        trial = self._open.pop(record.number)
        trial.set_user_attr(_RECORD, _RECORDS.dump_python(record, mode="json"))
        self._close(trial, record.outcome)

    def interrupted(self) -> tuple[Interrupted, ...]:
        """Trials that an earlier driver left open."""
        left = self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
        return tuple(
            Interrupted(
                number=trial.number,
                plan=Plan.from_dict(trial.user_attrs[_PLAN]),
                retry_of=trial.user_attrs.get(_RETRY),
            )
            for trial in left
            if trial.number not in self._open and _PLAN in trial.user_attrs
        )

    def abandon(self, number: int, record: Record | None = None) -> None:
        """Fails a trial that never ended; with a record it counts, without it can run again."""
        if record is not None:
            trial = self._study.get_trials(deepcopy=False)[number]
            self._study._storage.set_trial_user_attr(
                trial._trial_id, _RECORD, _RECORDS.dump_python(record, mode="json")
            )
            self._taken.add(record.plan)
        self._open.pop(number, None)
        self._study.tell(number, state=TrialState.FAIL)

    def _close(self, trial: Trial, outcome: Outcome) -> None:
        match outcome:
            case Measured(memory=memory):
                allowed = memory.limit_bytes * (1 - self._headroom)
                trial.set_constraint(_CONSTRAINT, memory.peak_bytes / allowed - 1)
                self._study.tell(trial, outcome.samples_per_second.value)
            case OutOfMemory():
                excess = 1 + (outcome.excess or 0.0)
                trial.set_constraint(_CONSTRAINT, excess / (1 - self._headroom) - 1 + _BEYOND)
                self._study.tell(trial, state=TrialState.PRUNED)
            case _:
                self._study.tell(trial, state=TrialState.FAIL)

    def _plan_of(self, values: dict[str, Any]) -> Plan:
        matching = (
            plan
            for plan in self._space.candidates
            if plan not in self._taken
            and all(getattr(plan, name) == value for name, value in values.items())
        )
        return next(matching)


_BEYOND = 1e-6  # a plan that ran out of memory is infeasible even without head-room


def _records(study: optuna.Study) -> tuple[Record, ...]:
    def with_record(trial: FrozenTrial) -> bool:
        return trial.state.is_finished() and _RECORD in trial.user_attrs

    return tuple(
        _RECORDS.validate_python(trial.user_attrs[_RECORD])
        for trial in study.get_trials(deepcopy=False)
        if with_record(trial)
    )


def _open_storage(url: str) -> RDBStorage:
    if url.startswith("sqlite:///"):
        Path(url.removeprefix("sqlite:///")).parent.mkdir(parents=True, exist_ok=True)
        return RDBStorage(url, engine_kwargs={"connect_args": {"timeout": _BUSY_SECONDS}})
    return RDBStorage(url)


@contextlib.contextmanager
def _storage_errors(url: str) -> Iterator[None]:
    """Turns what a storage that cannot be opened raises into a sentence, without credentials."""
    try:
        yield
    except (ArgumentError, SQLAlchemyError, StorageInternalError, OSError, ImportError) as error:
        cause = error.__cause__ or error
        reason = next(iter(str(cause).strip().splitlines()), type(cause).__name__)
        raise StudyError(
            f"study.storage {_without_password(url)} cannot be opened: {reason}"
        ) from error


def _without_password(url: str) -> str:
    scheme, separator, rest = url.partition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2]}"


def _check_subject(study: optuna.Study, spec: SweepSpec, name: str) -> None:
    """A study holds measurements of one job; numbers of two do not compare."""
    subject = spec.model_dump(mode="json", include={"model", "data", "train", "cluster"})
    subject["cluster"].pop("address")
    known = study.user_attrs.get(_SUBJECT)
    if known is None:
        study.set_user_attr(_SUBJECT, subject)
        return
    if _digest(known) != _digest(subject):
        changed = [
            f"{section}.{key}"
            for section in subject
            for key in subject[section]
            if known.get(section, {}).get(key) != subject[section][key]
        ]
        raise StudyError(
            f"study {name} holds measurements of another job ({', '.join(changed)} changed);"
            " choose another study.name, or put the old values back"
        )


def _digest(subject: Any) -> str:
    return hashlib.sha256(json.dumps(subject, sort_keys=True).encode()).hexdigest()
