"""Where a study is kept, and what is wrong with it if it cannot be opened."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

from optuna.exceptions import StorageInternalError
from optuna.storages import RDBStorage
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from search_spaces.errors import StudyError
from search_spaces.spec.schema import SweepSpec

STUDY_FILE = "study.db"  # in a study's folder, where the spec names no storage
_BUSY_SECONDS = 20


def storage_url(spec: SweepSpec, name: str) -> str:
    """Where the study is kept: the spec's storage, or SQLite in the study's own folder."""
    return spec.study.storage or f"sqlite:///{Path(spec.study.folder, name, STUDY_FILE)}"


def open_storage(url: str) -> RDBStorage:
    """Optuna's storage; a SQLite file is made, and its folder too."""
    if url.startswith("sqlite:///"):
        Path(url.removeprefix("sqlite:///")).parent.mkdir(parents=True, exist_ok=True)
        return RDBStorage(url, engine_kwargs={"connect_args": {"timeout": _BUSY_SECONDS}})
    return RDBStorage(url)


@contextlib.contextmanager
def storage_errors(url: str) -> Iterator[None]:
    """Turns what a storage that cannot be opened raises into a sentence, without credentials."""
    try:
        yield
    except (ArgumentError, SQLAlchemyError, StorageInternalError, OSError, ImportError) as error:
        shown = _without_password(url)
        reason = _reason(error.__cause__ or error).replace(url, shown)
        raise StudyError(f"study.storage {shown} cannot be opened: {reason}") from error


def _reason(error: BaseException) -> str:
    line = next(iter(str(error).strip().splitlines()), type(error).__name__)
    if isinstance(error, ImportError) and error.name:
        return f"its driver, the Python package {error.name}, is not installed"
    return line


def _without_password(url: str) -> str:
    """Scheme, host and path: no user, and no query either, which may hold a password."""
    return re.sub(r"[^/]*@|\?.*$", "", url)
