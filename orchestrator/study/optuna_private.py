"""Private parts of Optuna that we rely on: its tables, and the names of constraints."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator

from optuna.distributions import distribution_to_json
from optuna.storages import RDBStorage
from optuna.storages._rdb.models import (
    StudyModel,
    StudyUserAttributeModel,
    TrialModel,
    TrialParamModel,
    TrialUserAttributeModel,
)
from optuna.study._constrained_optimization import _CONSTRAINTS_KEY
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy import Table, insert
from sqlalchemy.orm import Session, scoped_session, sessionmaker

STUDIES: Table = StudyModel.__table__
STUDY_ATTRIBUTES: Table = StudyUserAttributeModel.__table__


def constraint_key(name: str) -> str:
    """Returns the system attribute under which Optuna keeps a constraint of a trial."""
    return f"{_CONSTRAINTS_KEY}:{name}"


class StudyStorage(RDBStorage):
    """RDBStorage that opens a trial in 7 statements instead of 34, and can group writes."""

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
            return int(trial.trial_id)


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
