"""Where the study and MLflow are: what the specification names, else the environment.

The one place where that is decided, so that all commands agree.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from search_spaces.errors import StudyError, UserError
from search_spaces.request import snapshot_stem
from search_spaces.spec.addresses import without_password
from search_spaces.spec.load import load_spec, spec_to_yaml, study_name
from search_spaces.spec.schema import StudySpec, SweepSpec

STORAGE_VARIABLE = "PLIMSOLL_STUDY_STORAGE"
TRACKING_VARIABLE = "MLFLOW_TRACKING_URI"
EXPERIMENT_VARIABLE = "MLFLOW_EXPERIMENT_NAME"
SPEC_FILE = "spec.yaml"
_DATABASE = b"SQLite format 3\0"  # the first bytes of such a file
_STUDY_FILE = "study.db"  # in a study's folder
_YAML = (".yaml", ".yml")
NO_SPEC = "it has no specification beside it: what its study does not tell is at its default"


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


def find_study(named: str | None, *, option: str = "") -> NamedStudy:
    """Finds the study that a user means.

    A study's folder may have been copied from another machine: a database in it is that study.

    Args:
        named: A specification's file, a study's folder or name, a SQLite file of studies or a
            database's URL, of several studies with `#NAME` at its end; None: the latest sweep of
            the current directory.
        option: The option that names it, for messages; empty for an argument.

    Raises:
        StudyError: If there is no such study, or a database holds several.
        SpecError: If the specification has faults.
    """
    if named is None:
        path = latest_spec()
        spec = load_spec(path)
        return NamedStudy(spec=spec, name=study_name(spec, path))
    address, wanted = _address(named)
    if "://" in address:
        return _of_database(address, wanted, shown=without_password(address))
    if _is_database(Path(address)):
        return _of_file(Path(address), wanted)
    return _of_specification(named, f"{option} " if option else "")


def _of_specification(named: str, option: str) -> NamedStudy:
    path = Path(named)
    places = (path, path / SPEC_FILE, Path(StudySpec().folder) / named / SPEC_FILE)
    place = next(filter(is_file, places), None)
    if place is None and path.suffix in _YAML and not path.is_dir():
        place = path  # which says that it does not exist
    if place is None:
        return _of_shared_storage(named, option)
    spec = load_spec(place)
    name = study_name(spec, place)
    folder = path.parent if path.name == SPEC_FILE else path
    if study_storage(spec) is None and _is_database(folder / _STUDY_FILE):
        spec = _kept_in(spec, _sqlite(folder / _STUDY_FILE))
    return NamedStudy(spec=spec, name=name)


def _of_shared_storage(name: str, option: str) -> NamedStudy:
    """The study of that name in the storage that the environment names, if it names one."""
    storage = os.environ.get(STORAGE_VARIABLE)
    if storage and name in _held(storage):
        return _of_database(storage, name, shown=without_password(storage))
    where = f" or {STORAGE_VARIABLE}" if storage else ""
    raise StudyError(
        f"{option}{name} is neither a specification nor a study in {StudySpec().folder}{where}"
    )


def _of_file(path: Path, wanted: str) -> NamedStudy:
    """A study in a SQLite file: with the specification beside it, if that is the study's."""
    beside = path.parent / SPEC_FILE
    if is_file(beside):
        spec = load_spec(beside)
        name = study_name(spec, beside)
        if name in _held(_sqlite(path)) and wanted in ("", name):
            return NamedStudy(spec=_kept_in(spec, _sqlite(path)), name=name)
    return _of_database(_sqlite(path), wanted, shown=str(path))


def _of_database(url: str, wanted: str, *, shown: str) -> NamedStudy:
    """The study in a database, whose specification is made from what the study says it measured."""
    held = _held(url)
    names = ", ".join(sorted(held)) or "none"
    if wanted and wanted not in held:
        raise StudyError(f"{shown} holds no study {wanted} but {names}")
    if not wanted and len(held) != 1:
        raise StudyError(
            f"{shown} holds no single study but {names}: give the specification of one, or"
            f" {shown}#NAME"
        )
    name = wanted or next(iter(held))
    return NamedStudy(spec=_kept_in(_from_subject(held[name]), url), name=name, note=NO_SPEC)


def _held(url: str) -> Mapping[str, Mapping[str, Any]]:
    from orchestrator.study.reader import held_studies

    return held_studies(url)


def _from_subject(subject: Mapping[str, Any]) -> SweepSpec:
    """The specification as far as a study tells what it measured."""
    tree = {section: dict(keys) for section, keys in subject.items()}
    kinds = tree.get("cluster", {}).get("accelerators")
    if kinds:
        tree["cluster"]["accelerators"] = {
            name: {"memory_gib": limit} for name, limit in kinds.items()
        }
    return SweepSpec.model_validate(tree)


def _kept_in(spec: SweepSpec, url: str) -> SweepSpec:
    study = spec.study.model_copy(update={"storage": url})
    return spec.model_copy(update={"study": study})


def _sqlite(path: Path) -> str:
    return f"sqlite:///{path}"


def _address(named: str) -> tuple[str, str]:
    """A database and the study in it; the whole and nothing where no `#` parts them."""
    address, mark, name = named.rpartition("#")
    if mark and ("://" in address or _is_database(Path(address))):
        return address, name
    return named, ""


def _is_database(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(_DATABASE)) == _DATABASE
    except (OSError, ValueError):  # no file, or no name of one
        return False
