"""Read access to stored studies: records, the end, the state, other studies of the same job."""

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import optuna

from orchestrator.core.events import SweepEnded, SweepStarted, TrialEnded
from orchestrator.core.records import Record
from orchestrator.core.state import SweepState, advance, begin
from orchestrator.search.transfer import EarlierStudy
from orchestrator.study.identity import is_same_job, job_of
from orchestrator.study.serialization import (
    kept_end,
    kept_provenances,
    kept_understanding,
    kept_validations,
    records_of,
)
from orchestrator.study.storage import (
    STUDY_FILE,
    holds_studies,
    opened_storage,
    safe_url,
    sqlite_path,
    storage_errors,
    storage_url,
)
from orchestrator.workspace import study_storage
from search_spaces.errors import StudyError
from search_spaces.facts import ModelFacts, Provenance, Understanding
from search_spaces.specification.schema import SweepSpec

Content = TypeVar("Content")
_MAX_NAMES = 20  # of studies in a message


def load_records(spec: SweepSpec, name: str) -> tuple[Record, ...]:
    """Returns the records of a study's trials; one that cannot be read is named on stderr.

    Raises:
        StudyError: If there is no such study, or its storage cannot be opened.
    """
    return _load(spec, name, lambda study: records_of(study, _say))


def load_provenances(spec: SweepSpec, name: str) -> tuple[Provenance, ...]:
    """Returns user, code and data of each driver that worked on a study, oldest first.

    Raises:
        StudyError: If there is no such study, or its storage cannot be opened.
    """
    return _load(spec, name, lambda study: kept_provenances(study, _say))


def stored_studies(url: str) -> dict[str, dict[str, Any]]:
    """Returns the studies in a storage by name, each with the job that it measures.

    Raises:
        StudyError: If the storage cannot be opened, or holds no study.
    """
    with storage_errors(url):
        if not holds_studies(url):
            raise StudyError(f"{safe_url(url)} holds no study")
        with opened_storage(url) as storage:
            return {
                frozen.study_name: job_of(frozen.user_attrs)
                for frozen in storage.get_all_studies()
                if job_of(frozen.user_attrs)
            }


def _say(notice: str) -> None:
    sys.stderr.write(f"{notice}\n")


def stored_job(spec: SweepSpec, name: str) -> dict[str, Any]:
    """Returns the job that a study measures, by section; empty without a study.

    Raises:
        StudyError: If the storage cannot be opened.
    """
    url = storage_url(spec, name)
    with storage_errors(url):
        if not holds_studies(url):
            return {}
    return stored_studies(url).get(name, {})


def _load(spec: SweepSpec, name: str, read: Callable[[optuna.Study], Content]) -> Content:
    url = storage_url(spec, name)
    address = safe_url(url)
    path = sqlite_path(url)
    if path is not None and not path.exists():
        raise StudyError(
            f"there is no study {name} yet: {address} does not exist; run plimsoll tune"
        )
    with storage_errors(url):
        if not holds_studies(url):
            raise StudyError(f"{address} holds no study yet; run plimsoll tune")
        with opened_storage(url) as storage:
            names = optuna.get_all_study_names(storage)
            if name in names:
                return read(optuna.load_study(study_name=name, storage=storage))
    raise StudyError(f"{address} holds no study {name}; run plimsoll tune{_others(names)}")


def _others(names: Sequence[str]) -> str:
    if not names:
        return ""
    listed = ", ".join(sorted(names)[:_MAX_NAMES])
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return f", or name a study that it holds: {listed}{more}"


def stored_state(
    spec: SweepSpec,
    name: str,
    records: tuple[Record, ...],
    validations: tuple[Record, ...] = (),
    ended: SweepEnded | None = None,
    understanding: Understanding | None = None,
) -> SweepState:
    """Returns the state of a sweep with these results. Its space holds the tried plans only.

    Raises:
        StudyError: If there are no records.
    """
    if not records:
        raise StudyError(f"the study {name} has no finished trial yet")
    from search_spaces.space import space_of_plans

    started = SweepStarted(
        study=name,
        spec=spec,
        space=space_of_plans([record.plan for record in records], spec),
        records=(),
        memory_limit_bytes=spec.memory_limit_bytes,
        at=min(record.started_at for record in records),
        understanding=understanding,
    )
    state = begin(started)
    for record in (*records, *validations):
        state = advance(state, TrialEnded(record=record, at=record.ended_at))
    return state if ended is None else advance(state, ended)


def load_state(spec: SweepSpec, name: str) -> SweepState:
    """Returns the state of a sweep that has run, from its study.

    Raises:
        StudyError: If there is no such study, or it has no records.
    """

    def read(study: optuna.Study) -> SweepState:
        validations = kept_validations(study, _say)
        records, understanding = records_of(study, _say), kept_understanding(study, _say)
        ended = kept_end(study, _say)
        return stored_state(spec, name, records, validations, ended, understanding)

    return _load(spec, name, read)


def model_of(state: SweepState) -> ModelFacts:
    """Returns the facts of a stored sweep's model, without running a user's code.

    Raises:
        StudyError: If the study does not record them, and the model's code would have to run.
        ModelError: If the model cannot be found.
    """
    if state.understanding is not None:
        return state.understanding.model
    from workers.models.facts import model_facts
    from workers.models.trust import runs_user_code

    model, train = state.spec.model, state.spec.train
    if runs_user_code(model) or ":" in train.optimizer:
        raise StudyError(
            f"study {state.study} does not record what model {model.name} is, and only plimsoll"
            " tune runs its code: resume the sweep once"
        )
    return model_facts(model, train)


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
