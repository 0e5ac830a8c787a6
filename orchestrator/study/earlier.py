"""What other studies of the same job have measured."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import optuna

from orchestrator.core.likeness import differences, doubt
from orchestrator.places import study_storage
from orchestrator.study.records import records_of
from orchestrator.study.storage import STUDY_FILE, brief_storage, storage_errors
from orchestrator.study.subject import is_same_job
from search_spaces.errors import StudyError
from search_spaces.record import Fingerprint, Record
from search_spaces.spec.schema import SweepSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierStudy:
    """Another study of the same model, data and training."""

    name: str
    records: tuple[Record, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """A record of another study, and how far it may be off here, as a deviation of logarithms."""

    study: str
    record: Record
    doubt: float


def earlier_studies(spec: SweepSpec, name: str) -> tuple[EarlierStudy, ...]:
    """The other studies in the spec's folder or storage whose model, data and training are its.

    Those that cannot be read are passed over: a search can do without.
    """
    found = []
    for study in _same_jobs(spec, but=name):
        records = tuple(record for record in records_of(study) if record.fingerprint)
        if records:
            found.append(EarlierStudy(name=study.study_name, records=records))
    return tuple(found)


def lessons(studies: Iterable[EarlierStudy], ours: Fingerprint) -> tuple[Lesson, ...]:
    """What holds here of what they measured."""
    return tuple(
        Lesson(study=study.name, record=record, doubt=off)
        for study in studies
        for record in study.records
        if (off := doubt(record.fingerprint, ours)) is not None
    )


def sources(studies: Iterable[EarlierStudy], ours: Fingerprint) -> tuple[str, ...]:
    """Which studies are evidence here and how far they are believed, a sentence each."""
    return tuple(sentence for study in studies if (sentence := _source(study, ours)))


def _source(study: EarlierStudy, ours: Fingerprint) -> str:
    taken = lessons([study], ours)
    if not taken:
        return f"study {study.name} measured the same job on another device: it is no evidence here"
    other = sorted({word for lesson in taken for word in _different(lesson.record, ours)})
    trials = f"{len(taken)} trial" + "s" * (len(taken) > 1)
    most = max(lesson.doubt for lesson in taken)
    beside = f", discounted for {', '.join(other)}" if other else ""
    return f"{trials} of study {study.name} are evidence too, to {100 * most:.0f} %{beside}"


def _different(record: Record, ours: Fingerprint) -> Sequence[str]:
    return differences(record.fingerprint, ours) if record.fingerprint else ()


def _same_jobs(spec: SweepSpec, but: str) -> Iterator[optuna.Study]:
    storage = study_storage(spec)
    for url in [storage] if storage else _files(Path(spec.study.folder)):
        with contextlib.suppress(StudyError), storage_errors(url), brief_storage(url) as opened:
            # all names and attributes at once: a shared storage may hold hundreds of studies
            for frozen in opened.get_all_studies():
                if frozen.study_name != but and is_same_job(frozen.user_attrs, spec):
                    yield optuna.load_study(study_name=frozen.study_name, storage=opened)


def _files(folder: Path) -> list[str]:
    return [f"sqlite:///{file}" for file in sorted(folder.glob(f"*/{STUDY_FILE}"))]
