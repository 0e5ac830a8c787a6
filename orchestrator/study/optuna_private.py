"""Private parts of Optuna that we rely on: tables, names of constraints, and reading of JSON."""

import contextlib
import json
from collections.abc import Iterator
from typing import Any, final

from optuna.storages import RDBStorage
from optuna.storages._rdb import storage
from optuna.storages._rdb.models import StudyModel, StudyUserAttributeModel, TrialModel
from optuna.study._constrained_optimization import _CONSTRAINTS_KEY
from optuna.trial import FrozenTrial
from sqlalchemy import Table
from sqlalchemy.orm import scoped_session, sessionmaker

_MOST_LEVELS = 64  # of lists and objects; ours have about ten
_ODD_VALUES = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)
_LARGEST = 1e30  # no count, time or rate comes near
STUDIES: Table = StudyModel.__table__
STUDY_ATTRIBUTES: Table = StudyUserAttributeModel.__table__


def constraint_key(name: str) -> str:
    """Returns the system attribute under which Optuna keeps a constraint of a trial."""
    return f"{_CONSTRAINTS_KEY}:{name}"


def bounded_json(text: str) -> Any:
    """Returns the value of a JSON document; None if it is none, or nested deeper than any of ours.

    Numbers that are not finite or too large are None too, and texts can be encoded.
    """
    try:
        return _usable(json.loads(text, parse_constant=lambda _: None), _MOST_LEVELS)
    except (ValueError, RecursionError):  # a number of many thousand digits is a ValueError
        return None


def _usable(value: Any, levels: int) -> Any:
    match value:
        case dict() | list() if levels == 0:
            raise ValueError("nested too deep")
        case dict():
            return {_usable(key, 0): _usable(part, levels - 1) for key, part in value.items()}
        case list():
            return [_usable(part, levels - 1) for part in value]
        case str():
            return value.encode("utf-8", "backslashreplace").decode()
        case int() | float() if abs(value) > _LARGEST:
            return None
        case _:
            return value


@final
class _BoundedJson:
    """Module `json` for Optuna, which reads all values of a study at once: a bad one is None."""

    dumps = staticmethod(json.dumps)
    loads = staticmethod(bounded_json)


storage.json = _BoundedJson  # type: ignore[attr-defined, assignment]


class StudyStorage(RDBStorage):
    """RDBStorage that can group writes, and names a trial that it cannot read."""

    def _build_frozen_trial_from_trial_model(self, trial: TrialModel) -> FrozenTrial:
        try:
            return super()._build_frozen_trial_from_trial_model(trial)
        except _ODD_VALUES as error:
            raise ValueError(f"trial {trial.number} cannot be read ({error!r})") from None

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
