"""Locations of the study and of MLflow: from the specification, else from the environment.

All commands read them here, so that they agree.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from search_spaces.errors import UserError, written
from search_spaces.safety.files import check_own, write_durably
from search_spaces.safety.redaction import without_password
from search_spaces.specification.load import spec_to_yaml
from search_spaces.specification.schema import StudySpec, SweepSpec

STORAGE_VARIABLE = "PLIMSOLL_STUDY_STORAGE"
TRACKING_VARIABLE = "MLFLOW_TRACKING_URI"
EXPERIMENT_VARIABLE = "MLFLOW_EXPERIMENT_NAME"
SPEC_FILE, REPORT_FILE = "spec.yaml", "report.html"


def study_storage(spec: SweepSpec) -> str | None:
    """Returns the URL of the study's database; None: a file in the study's folder."""
    return _address(spec.study.storage, STORAGE_VARIABLE)


def tracking_uri(spec: SweepSpec) -> str | None:
    """Returns the URI of the MLflow store or server; None: a file in the folder of the studies."""
    return _address(spec.tracking.uri, TRACKING_VARIABLE)


def experiment_name(spec: SweepSpec, study: str) -> str:
    """Returns the MLflow experiment of a study's runs; by default it has the study's name."""
    return spec.tracking.experiment or os.environ.get(EXPERIMENT_VARIABLE) or study


def with_driver(url: str) -> str:
    """Returns the URL for SQLAlchemy, with psycopg for PostgreSQL if it names no driver.

    SQLAlchemy 2.1 does the same; 2.0 uses psycopg2, which Plimsoll does not install.
    """
    scheme, mark, rest = url.partition("://")
    return f"postgresql+psycopg://{rest}" if mark and scheme == "postgresql" else url


def _address(address: str | None, variable: str) -> str | None:
    default = os.environ.get(variable) or None
    # the copy of a specification in a study's folder names the database without its password
    same = default is not None and address is not None and without_password(default) == address
    return default if address is None or same else address


def save_spec(spec: SweepSpec, name: str) -> None:
    """Writes the specification into the study's folder.

    Raises:
        UserError: If the folder cannot be written.
    """
    named = spec.model_copy(update={"study": spec.study.model_copy(update={"name": name})})
    folder = Path(spec.study.folder)
    with written(f"study.folder {folder}"):
        write_durably(folder / name / SPEC_FILE, spec_to_yaml(named), below=folder)


def check_files(spec: SweepSpec, *names: str) -> None:
    """Checks that files in the folder of studies are the user's own, or are not there yet.

    Raises:
        UserError: If one is a link, no regular file, or another user's.
    """
    for file in (Path(spec.study.folder, name) for name in names):
        with written(file):
            check_own(file, below=Path(spec.study.folder))


def latest_spec() -> Path:
    """Returns the path of the specification of the latest sweep in the current directory.

    Raises:
        UserError: If no sweep has run here.
    """
    folder = Path(StudySpec().folder)
    specs = [*folder.glob(f"*/{SPEC_FILE}")]
    if not specs:
        raise UserError(f"no sweep has run in {folder} yet; name a specification or a study")
    return max(specs, key=lambda file: file.stat().st_mtime)


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedStudy:
    """A study that a user named; `note` is a message for the user, or empty."""

    spec: SweepSpec
    name: str
    note: str = ""
