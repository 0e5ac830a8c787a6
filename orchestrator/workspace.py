"""Where the study and MLflow are: what the specification names, else the environment.

The one place where that is decided, so that all commands agree.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from search_spaces.errors import UserError
from search_spaces.spec.load import spec_to_yaml
from search_spaces.spec.redaction import without_password
from search_spaces.spec.schema import StudySpec, SweepSpec
from search_spaces.trial import snapshot_stem

STORAGE_VARIABLE = "PLIMSOLL_STUDY_STORAGE"
TRACKING_VARIABLE = "MLFLOW_TRACKING_URI"
EXPERIMENT_VARIABLE = "MLFLOW_EXPERIMENT_NAME"
SPEC_FILE = "spec.yaml"


def study_storage(spec: SweepSpec) -> str | None:
    """The database that holds the study; None: a file in the study's folder."""
    return _named(spec.study.storage, STORAGE_VARIABLE)


def tracking_uri(spec: SweepSpec) -> str | None:
    """The MLflow store or server; None: a file in the folder of the studies."""
    return _named(spec.tracking.uri, TRACKING_VARIABLE)


def experiment_name(spec: SweepSpec, study: str) -> str:
    """The MLflow experiment of a study's runs: of its own name, where nothing names another."""
    return spec.tracking.experiment or os.environ.get(EXPERIMENT_VARIABLE) or study


def snapshot_of(
    spec: SweepSpec, study: str, number: int, *, validation: bool = False
) -> Path | None:
    """Torch's picture of the memory that a trial ran out of; None if there is none here.

    It is a pickle: nothing of ours reads it.
    """
    stem = Path(snapshot_stem(spec, study, number, validation))
    return next(iter(sorted(stem.parent.glob(f"{stem.name}.rank-*.pickle"))), None)


def with_driver(url: str) -> str:
    """The URL as SQLAlchemy takes it: PostgreSQL by way of psycopg where it names no driver.

    SQLAlchemy 2.1 does the same; 2.0 takes psycopg2, which nothing here installs.
    """
    scheme, mark, rest = url.partition("://")
    return f"postgresql+psycopg://{rest}" if mark and scheme == "postgresql" else url


def is_file(path: Path) -> bool:
    """Whether there is a file of that name; what can be the name of none is none."""
    try:
        return path.is_file()
    except (OSError, ValueError):  # too long, a null byte
        return False


def _named(address: str | None, variable: str) -> str | None:
    given = os.environ.get(variable) or None
    # the copy of a specification in a study's folder names the database without its password
    same = given is not None and address is not None and without_password(given) == address
    return given if address is None or same else address


def remember(spec: SweepSpec, name: str) -> None:
    """Writes the specification into the study's folder.

    Raises:
        UserError: If the folder cannot be written.
    """
    named = spec.model_copy(update={"study": spec.study.model_copy(update={"name": name})})
    folder = Path(spec.study.folder) / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / SPEC_FILE).write_text(spec_to_yaml(named), encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"study.folder {spec.study.folder} cannot be written: {reason}") from None


def latest_spec() -> Path:
    """The specification of the latest sweep in the current directory.

    Raises:
        UserError: If none has run here.
    """
    folder = Path(StudySpec().folder)
    found = list(folder.glob(f"*/{SPEC_FILE}"))
    if not found:
        raise UserError(f"no sweep has run in {folder} yet; name a specification or a study")
    return max(found, key=lambda file: file.stat().st_mtime)


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedStudy:
    """A study that a user named: its specification, its name, and a note, empty if none is due."""

    spec: SweepSpec
    name: str
    note: str = ""
