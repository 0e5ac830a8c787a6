"""Warm start: results of other studies of the same job."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import optuna

from orchestrator.search.transfer import EarlierStudy
from orchestrator.study.identity import is_same_job
from orchestrator.study.serialization import records_of
from orchestrator.study.storage import STUDY_FILE, opened_storage, storage_errors
from orchestrator.workspace import study_storage
from search_spaces.errors import StudyError
from search_spaces.specification.schema import SweepSpec


def earlier_studies(spec: SweepSpec, name: str) -> tuple[EarlierStudy, ...]:
    """Returns the other studies of the same model, data and training, in the spec's storage.

    Without a named storage it looks through all studies of the folder. Skips studies that cannot
    be read: a search can do without them. None if `study.warm_start` is off.
    """
    studies = []
    for study in _same_jobs(spec, exclude=name) if spec.study.warm_start else ():
        with contextlib.suppress(StudyError):  # another version wrote it
            records = tuple(record for record in records_of(study) if record.fingerprint)
            if records:
                studies.append(EarlierStudy(name=study.study_name, records=records))
    return tuple(studies)


def _same_jobs(spec: SweepSpec, exclude: str) -> Iterator[optuna.Study]:
    storage = study_storage(spec)
    files = sorted(Path(spec.study.folder).glob(f"*/{STUDY_FILE}"))
    for url in [storage] if storage else [f"sqlite:///{file}" for file in files]:
        with contextlib.suppress(StudyError), storage_errors(url), opened_storage(url) as opened:
            # one query for all of them: a shared storage may hold hundreds of studies
            for frozen in opened.get_all_studies():
                if frozen.study_name != exclude and is_same_job(frozen.user_attrs, spec):
                    yield optuna.load_study(study_name=frozen.study_name, storage=opened)
