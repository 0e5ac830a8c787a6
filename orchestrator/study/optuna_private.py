"""Private parts of Optuna that we rely on: its tables, and the names of constraints."""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Iterator
from typing import Any

from alembic.script import ScriptDirectory
from optuna.distributions import distribution_to_json
from optuna.storages import RDBStorage
from optuna.storages._rdb.models import (
    StudyModel,
    StudyUserAttributeModel,
    TrialModel,
    TrialParamModel,
    TrialUserAttributeModel,
)
from optuna.storages._rdb.storage import _VersionManager
from optuna.study._constrained_optimization import _CONSTRAINTS_KEY
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy import Table, event, insert, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from sqlalchemy.orm.attributes import set_committed_value

STUDIES: Table = StudyModel.__table__
STUDY_ATTRIBUTES: Table = StudyUserAttributeModel.__table__


def _mark_damage(attribute: Any, _: Any) -> None:
    """Replaces the text of a damaged attribute by JSON, in memory alone: Optuna reads all or none.

    What reads the attribute then finds another form, and can leave out this one.
    """
    try:
        json.loads(attribute.value_json)
    except (ValueError, TypeError):
        set_committed_value(attribute, "value_json", json.dumps({"damaged": attribute.value_json}))


for _model in (StudyUserAttributeModel, TrialUserAttributeModel):
    event.listen(_model, "load", _mark_damage)


_load_migrations = _VersionManager._create_alembic_script


def _create_alembic_script(_: _VersionManager) -> ScriptDirectory:
    return _migrations()


@functools.cache
def _migrations() -> ScriptDirectory:
    manager = _VersionManager.__new__(_VersionManager)
    manager.url = ""  # is not used to load them
    return _load_migrations(manager)


# Whenever a storage is opened, Optuna executes its migrations to learn the newest schema: they
# define the tables of each again, which takes longer than all else, and stay in memory.
_VersionManager._create_alembic_script = _create_alembic_script  # type: ignore[assignment, method-assign]


def constraint_key(name: str) -> str:
    """Returns the system attribute under which Optuna keeps a constraint of a trial."""
    return f"{_CONSTRAINTS_KEY}:{name}"


class StudyStorage(RDBStorage):
    """RDBStorage that opens a trial in 7 statements instead of 34, and can group writes.

    It leaves no connection open if it cannot create its tables.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._numbers: dict[int, int] = {}  # of trials, by id
        try:
            super().__init__(*arguments, **options)
        except SQLAlchemyError:
            # there is no engine yet if the URL is wrong
            if (engine := getattr(self, "engine", None)) is not None:
                engine.dispose()
            raise

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Commits all writes of the block at its end, or none; for one thread at a time."""
        own = self.scoped_session
        with self.engine.begin() as connection:
            # a session's commit then leaves the connection's transaction open
            joined = sessionmaker(bind=connection, join_transaction_mode="rollback_only")
            self.scoped_session = scoped_session(joined)
            try:
                yield
            finally:
                self.scoped_session.remove()
                self.scoped_session = own

    def get_trial_number_from_id(self, trial_id: int) -> int:
        """Returns a trial's number, without reading the whole trial."""
        if trial_id not in self._numbers:
            with self.engine.connect() as connection:
                query = select(TrialModel.number).where(TrialModel.trial_id == trial_id)
                self._numbers[trial_id] = int(connection.execute(query).scalar_one())
        return self._numbers[trial_id]

    def create_new_trial(self, study_id: int, template_trial: FrozenTrial | None = None) -> int:
        """Creates a trial, and returns its id.

        A running one in few statements: Optuna writes parameters one by one, each after three
        queries. It checks that their distributions suit those of earlier trials; ours depend on the
        space alone.
        """
        if template_trial is None or template_trial.state is not TrialState.RUNNING:
            return int(super().create_new_trial(study_id, template_trial))
        with Session(self.engine) as session, session.begin():
            # locked, so that no other process counts the same trials
            StudyModel.find_or_raise_by_id(study_id, session, for_update=True)
            trial = _insert(session, study_id, template_trial)
            trial_id, number = int(trial.trial_id), int(trial.number)
        self._numbers[trial_id] = number
        return trial_id


def _insert(session: Session, study_id: int, template: FrozenTrial) -> TrialModel:
    trial = TrialModel(
        study_id=study_id,
        state=TrialState.RUNNING,
        datetime_start=template.datetime_start,
    )
    session.add(trial)
    session.flush()  # gives it an id
    params = [
        {
            "trial_id": trial.trial_id,
            "param_name": name,
            "param_value": distribution.to_internal_repr(template.params[name]),
            "distribution_json": distribution_to_json(distribution),
        }
        for name, distribution in template.distributions.items()
    ]
    if params:
        session.execute(insert(TrialParamModel), params)
    attributes = [
        {"trial_id": trial.trial_id, "key": key, "value_json": json.dumps(value)}
        for key, value in template.user_attrs.items()
    ]
    if attributes:
        session.execute(insert(TrialUserAttributeModel), attributes)
    trial.number = trial.count_past_trials(session)
    return trial
