"""What a study on disk holds, for those who only read it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import optuna

from orchestrator.core.events import SweepEnded
from orchestrator.study.ends import kept_end
from orchestrator.study.proofs import kept_proofs
from orchestrator.study.records import records_of
from orchestrator.study.storage import open_storage, storage_errors, storage_url
from search_spaces.errors import StudyError
from search_spaces.record import Record
from search_spaces.spec.schema import SweepSpec

Held = TypeVar("Held")


def load_records(spec: SweepSpec, name: str) -> tuple[Record, ...]:
    """The trials that a study holds, for reports.

    Raises:
        StudyError: If there is no such study, or its storage cannot be opened.
    """
    return _load(spec, name, records_of)


def load_proofs(spec: SweepSpec, name: str) -> tuple[Record, ...]:
    """The proofs that a study holds, for reports.

    Raises:
        StudyError: If there is no such study, or its storage cannot be opened.
    """
    return _load(spec, name, kept_proofs)


def load_end(spec: SweepSpec, name: str) -> SweepEnded | None:
    """How the last sweep of a study ended, for reports; None if it did not, or nobody can say.

    Raises:
        StudyError: If there is no such study, or its storage cannot be opened.
    """
    return _load(spec, name, kept_end)


def _load(spec: SweepSpec, name: str, held: Callable[[optuna.Study], Held]) -> Held:
    url = storage_url(spec, name)
    if url.startswith("sqlite:///") and not Path(url.removeprefix("sqlite:///")).exists():
        raise StudyError(f"there is no study {name} yet: {url} does not exist; run plimsoll tune")
    with storage_errors(url):
        storage = open_storage(url)
        try:
            study = optuna.load_study(study_name=name, storage=storage)
        except KeyError as error:
            raise StudyError(f"{url} holds no study {name}; run plimsoll tune") from error
        return held(study)
