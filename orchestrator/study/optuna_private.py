"""Private parts of Optuna that we rely on: its tables, and the names of constraints."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from optuna.storages import RDBStorage
from optuna.storages._rdb.models import StudyModel, StudyUserAttributeModel
from optuna.study._constrained_optimization import _CONSTRAINTS_KEY
from sqlalchemy import Table
from sqlalchemy.orm import scoped_session, sessionmaker

STUDIES: Table = StudyModel.__table__
STUDY_ATTRIBUTES: Table = StudyUserAttributeModel.__table__


def constraint_key(name: str) -> str:
    """Returns the system attribute under which Optuna keeps a constraint of a trial."""
    return f"{_CONSTRAINTS_KEY}:{name}"


class StudyStorage(RDBStorage):
    """RDBStorage that can group writes."""

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
