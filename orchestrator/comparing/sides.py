"""The two sides of a comparison: a study each, by its specification, its folder or its database."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestrator.places import is_file, study_storage
from orchestrator.planning import study_named
from orchestrator.study import held_studies
from search_spaces.errors import StudyError
from search_spaces.spec.load import load_spec, study_name
from search_spaces.spec.schema import SweepSpec

_DATABASE = b"SQLite format 3\0"  # what such a file begins with
_STUDY_FILE, _SPEC_FILE = "study.db", "spec.yaml"  # in a study's folder
NO_SPEC = "it has no specification beside it: what its study does not tell is at its default"


def side_of(named: str) -> tuple[SweepSpec, str, str]:
    """The specification and the name of a study, and what to say of it beside.

    A study's folder may have been copied from another machine: a database in it is that study.

    Args:
        named: A specification's file, a study's folder or name, or a SQLite file of studies.

    Raises:
        StudyError: If there is no such study, or a file holds several.
        SpecError: If the specification has faults.
    """
    path = Path(named)
    if _is_database(path):
        return _of_database(path)
    spec, name = study_named(named, called="")
    folder = path.parent if path.name == _SPEC_FILE else path
    if study_storage(spec) is None and _is_database(folder / _STUDY_FILE):
        spec = _kept_in(spec, folder / _STUDY_FILE)
    return spec, name, ""


def _of_database(path: Path) -> tuple[SweepSpec, str, str]:
    held = held_studies(f"sqlite:///{path}")
    beside = path.parent / _SPEC_FILE
    if is_file(beside):
        spec = load_spec(beside)
        if (name := study_name(spec, beside)) in held:
            return _kept_in(spec, path), name, ""
    if len(held) != 1:
        names = ", ".join(sorted(held)) or "none"
        raise StudyError(f"{path} holds no single study but {names}: give the specification of one")
    ((name, subject),) = held.items()
    return _kept_in(_from_subject(subject), path), name, NO_SPEC


def _from_subject(subject: Mapping[str, Any]) -> SweepSpec:
    """The specification as far as a study tells what it measured."""
    tree = {section: dict(keys) for section, keys in subject.items()}
    kinds = tree.get("cluster", {}).get("accelerators")
    if kinds:
        tree["cluster"]["accelerators"] = {
            name: {"memory_gib": limit} for name, limit in kinds.items()
        }
    return SweepSpec.model_validate(tree)


def _kept_in(spec: SweepSpec, path: Path) -> SweepSpec:
    study = spec.study.model_copy(update={"storage": f"sqlite:///{path}"})
    return spec.model_copy(update={"study": study})


def _is_database(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(_DATABASE)) == _DATABASE
    except (OSError, ValueError):  # no file, or no name of one
        return False
