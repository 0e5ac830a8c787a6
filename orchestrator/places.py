"""Where the study and MLflow are: what the specification names, else the environment.

The one place where that is decided, so that all commands agree.
"""

from __future__ import annotations

import os
from pathlib import Path

from search_spaces.request import snapshot_stem
from search_spaces.spec.addresses import without_password
from search_spaces.spec.schema import SweepSpec

STORAGE_VARIABLE = "PLIMSOLL_STUDY_STORAGE"
TRACKING_VARIABLE = "MLFLOW_TRACKING_URI"
EXPERIMENT_VARIABLE = "MLFLOW_EXPERIMENT_NAME"


def study_storage(spec: SweepSpec) -> str | None:
    """The database that holds the study; None: a file in the study's folder."""
    return _named(spec.study.storage, STORAGE_VARIABLE)


def tracking_uri(spec: SweepSpec) -> str | None:
    """The MLflow store or server; None: a file in the folder of the studies."""
    return _named(spec.tracking.uri, TRACKING_VARIABLE)


def experiment_name(spec: SweepSpec, study: str) -> str:
    """The MLflow experiment of a study's runs: of its own name, where nothing names another."""
    return spec.tracking.experiment or os.environ.get(EXPERIMENT_VARIABLE) or study


def snapshot_of(spec: SweepSpec, study: str, number: int, *, proof: bool = False) -> Path | None:
    """Torch's picture of the memory that a trial ran out of; None if there is none here.

    It is a pickle: nothing of ours reads it.
    """
    stem = Path(snapshot_stem(spec, study, number, proof))
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
