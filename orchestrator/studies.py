"""Studies by what a user calls them: a specification, a folder, a name or a database.

Every command, `--records` and `load_best` name a study in this one way.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.latest import SPEC_FILE, latest_spec
from orchestrator.places import STORAGE_VARIABLE, is_file, study_storage
from search_spaces.errors import StudyError
from search_spaces.spec.addresses import without_password
from search_spaces.spec.load import load_spec, study_name
from search_spaces.spec.schema import StudySpec, SweepSpec

_DATABASE = b"SQLite format 3\0"  # the first bytes of such a file
_STUDY_FILE = "study.db"  # in a study's folder
_YAML = (".yaml", ".yml")
NO_SPEC = "it has no specification beside it: what its study does not tell is at its default"


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
    from orchestrator.study import held_studies  # imports Optuna

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
