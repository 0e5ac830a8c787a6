"""Writer of a study to MLflow: one run for the sweep, with one nested run per trial.

Runs are found again by tags, so that missing ones can be added at any time and none is written
twice.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import final

from mlflow import MlflowClient
from mlflow.entities import Metric, Param, Run
from mlflow.utils import get_results_from_paginated_fn

from orchestrator.core.records import Record
from orchestrator.core.state import SweepState
from orchestrator.report.labels import fixed_knobs, may_be_lossy
from orchestrator.tracking import mlflow_artifacts, mlflow_fields
from orchestrator.tracking.mlflow_client import STUDY_TAG, SWEEP_TAG, of_study, open_client
from orchestrator.tracking.mlflow_fields import (
    dataset_input,
    source_tags,
    validation_metrics,
    validation_tags,
)
from orchestrator.tracking.mlflow_store import artifact_uri, check_artifacts, store_uri
from orchestrator.tracking.mlflow_view import KIND_TAG, VIEW_TAG, view_state
from orchestrator.workspace import experiment_name
from search_spaces.facts import Provenance, provenance_at
from search_spaces.safety.files import write_durably
from search_spaces.trial import Fingerprint

_PAGE = 1000
_BEST = "best: "
# Number and start [ms] of a trial: trials of another study of the same name differ in their start.
_Identity = tuple[str, int]


def find_experiment(client: MlflowClient, state: SweepState) -> str:
    """Returns the id of the study's experiment; creates or restores it, and adds the view.

    Raises:
        MissingExtraError: If its artifacts are in S3 and boto3 is not installed.
        PermissionError: If they are in a folder that the user did not name.
    """
    name = experiment_name(state.spec, state.study)
    view = view_state(fixed_knobs(state.space), lossy=may_be_lossy(state.space, state.spec))
    experiment = client.get_experiment_by_name(name)
    if experiment is None:
        experiment_id = client.create_experiment(
            name,
            artifact_location=artifact_uri(state.spec),
            tags={VIEW_TAG: view, KIND_TAG[0]: KIND_TAG[1]},
        )
        check_artifacts(client.get_experiment(experiment_id).artifact_location, state.spec)
        return str(experiment_id)
    check_artifacts(experiment.artifact_location, state.spec)
    if experiment.lifecycle_stage == "deleted":
        client.restore_experiment(experiment.experiment_id)
    if VIEW_TAG not in experiment.tags:  # another program created the experiment
        client.set_experiment_tag(experiment.experiment_id, VIEW_TAG, view)
    return str(experiment.experiment_id)


@final
class StudyWriter:
    """Adds to MLflow what it lacks of a study, as often as needed.

    Args:
        state: State of the study.
        provenances: User, code and data of the study's drivers; empty if unknown.

    Raises:
        Exception: One of `tracking_errors`, from any method, if the store cannot be used.
    """

    def __init__(self, state: SweepState, provenances: Sequence[Provenance] = ()) -> None:
        self._client = open_client(store_uri(state.spec))
        self._provenances = tuple(provenances)
        self._described: Fingerprint | None = None
        self._study = state.study
        self._experiment = find_experiment(self._client, state)
        self._written: set[_Identity] = set()
        self._runs_by_trial: dict[_Identity, str] = {}
        self._parent = self._find_parent(state.records) or self._new_parent(state)
        self._client.update_run(self._parent, status="RUNNING")
        location = str(self._client.get_run(self._parent).info.artifact_uri)
        self._folder = check_artifacts(location, state.spec)
        self._add_source()
        self._add_params(state)
        self._write_artifacts(mlflow_artifacts.start_files(state.spec))

    def missing(self, state: SweepState) -> int:
        """Returns the number of records and validations without a complete run."""
        every = {_identity(record) for record in (*state.records, *state.validations)}
        return len(every - self._written)

    def add_missing(self, state: SweepState) -> None:
        """Adds a run for each record and validation that lacks one, and the sweep's metrics."""
        for index, record in enumerate(state.records):
            if _identity(record) not in self._written:
                self._add_trial(record, state)
                self._written.add(_identity(record))
                self._add_progress(state, index, record.ended_at)
        for validation in state.validations:
            if _identity(validation) not in self._written:
                self._add_trial(validation, state)
                self._written.add(_identity(validation))

    def describe_workers(self, state: SweepState) -> None:
        """Adds hardware and software of the workers to the artifacts, if they changed."""
        fingerprint = state.last_fingerprint
        if fingerprint != self._described:
            self._write_artifacts(mlflow_artifacts.worker_files(fingerprint))
            self._described = fingerprint

    def finish(self, state: SweepState) -> None:
        """Adds the result and ends the sweep's run, as killed if the sweep did not end itself."""
        self.add_missing(state)
        self._name_and_rank(state)
        if state.validations:
            self._add_progress(state, len(state.records) - 1, state.validations[-1].ended_at)
        self._client.set_tag(
            self._parent, "mlflow.note.content", mlflow_artifacts.best_markdown(state)
        )
        for name, value in mlflow_fields.sweep_tags(state).items():
            self._client.set_tag(self._parent, name, value)
        self._write_artifacts(mlflow_artifacts.end_files(state))
        self._delete_duplicates()
        ended = state.ended
        status = "KILLED" if ended is None else "FINISHED"
        end_time = None if ended is None else _ms(ended.at)
        self._client.set_terminated(self._parent, status, end_time=end_time)

    def _name_and_rank(self, state: SweepState) -> None:
        """Names the best plan's run, and orders the table by what all measurements say."""
        ranks = mlflow_fields.final_metrics(state)
        runs = {run.info.run_id: run for run in self._runs()}
        for record in state.records:
            if (run := runs.get(self._runs_by_trial[_identity(record)])) is None:
                continue  # somebody deleted it
            name, old = mlflow_fields.trial_name(record, state), run.info.run_name
            if name != old and (name.startswith(_BEST) or old.startswith(_BEST)):
                self._client.update_run(run.info.run_id, name=name)
            values = ranks.get(record.number, {})
            if any(run.data.metrics.get(key) != value for key, value in values.items()):
                metrics = [Metric(key, one, _ms(record.ended_at), 0) for key, one in values.items()]
                self._client.log_batch(run.info.run_id, metrics=metrics)

    def _find_parent(self, records: Iterable[Record]) -> str:
        """Returns the run that contains a trial of the study, or else a run without trials.

        Also notes the trials in that run: complete ones, and ones that a driver was writing when
        it died. Returns an empty string if there is no such run.
        """
        children: dict[str, list[Run]] = {}
        for run in self._runs():
            parent = run.data.tags.get("mlflow.parentRunId")
            children.setdefault(parent or run.info.run_id, [])
            if parent:
                children[parent].append(run)
        trials = {_identity(record) for record in records}
        for parent, runs in children.items():
            if any(_identity_of_run(run) in trials for run in runs):
                for run in sorted(runs, key=_has_ended):  # of duplicates, the ended one wins
                    self._runs_by_trial[_identity_of_run(run)] = run.info.run_id
                    if _has_ended(run):
                        self._written.add(_identity_of_run(run))
                return parent
        # the run of a driver that died before it wrote its first trial counts too
        return next((parent for parent, runs in children.items() if not runs), "")

    def _runs(self) -> list[Run]:
        def page(most: int, token: str | None) -> Sequence[Run]:
            where = [self._experiment], of_study(self._study)
            return self._client.search_runs(*where, max_results=most, page_token=token)

        return get_results_from_paginated_fn(page, _PAGE)

    def _new_parent(self, state: SweepState) -> str:
        tags = {
            STUDY_TAG: self._study,
            SWEEP_TAG: "true",
            "kind": "sweep",
            **source_tags(self._latest()),
        }
        run = self._client.create_run(
            self._experiment, start_time=_ms(state.started_at), tags=tags, run_name=self._study
        )
        return str(run.info.run_id)

    def _add_source(self) -> None:
        """Adds the latest version of the code, and the data of all drivers of the study."""
        existing = self._client.get_run(self._parent).data.tags
        for name, value in source_tags(self._latest()).items():
            if existing.get(name) != value:
                self._client.set_tag(self._parent, name, value)
        profiles = dict.fromkeys(
            provenance.data for provenance in self._provenances if provenance.data is not None
        )
        if profiles:
            self._client.log_inputs(self._parent, [dataset_input(data) for data in profiles])

    def _latest(self) -> Provenance | None:
        return self._provenances[-1] if self._provenances else None

    def _add_params(self, state: SweepState) -> None:
        existing = self._client.get_run(self._parent).data.params
        params = mlflow_fields.study_params(state.spec, state.memory_limit_bytes)
        # MLflow refuses to change a param
        new = [Param(name, value) for name, value in params.items() if name not in existing]
        self._client.log_batch(self._parent, params=new)

    def _add_trial(self, record: Record, state: SweepState) -> None:
        source = provenance_at(self._provenances, record.started_at)
        run_id = self._run_of(record, state, source)
        if source is not None and source.data is not None:
            self._client.log_inputs(run_id, [dataset_input(source.data)])
        params = [Param(*param) for param in mlflow_fields.trial_params(record, state).items()]
        self._client.log_batch(run_id, metrics=list(_metrics(record, state)), params=params)
        status = {"measured": "FINISHED", "cancelled": "KILLED"}.get(record.outcome.kind, "FAILED")
        # last, because an ended run counts as complete
        self._client.set_terminated(run_id, status, end_time=_ms(record.ended_at))

    def _run_of(self, record: Record, state: SweepState, source: Provenance | None) -> str:
        if existing := self._runs_by_trial.get(_identity(record)):
            return existing
        tags = {
            **mlflow_fields.trial_tags(record, state.spec, self._study),
            **validation_tags(record, state),
            **source_tags(source),
            "mlflow.parentRunId": self._parent,
        }
        start, name = _ms(record.started_at), mlflow_fields.trial_name(record, state)
        run = self._client.create_run(self._experiment, start_time=start, tags=tags, run_name=name)
        run_id = str(run.info.run_id)
        self._runs_by_trial[_identity(record)] = run_id
        return run_id

    def _delete_duplicates(self) -> None:
        """Deletes runs that were created twice, because MLflow retries if a reply is lost."""
        own_runs = {self._parent, *self._runs_by_trial.values()}
        start_time = self._client.get_run(self._parent).info.start_time
        runs = self._runs()
        parents = {run.data.tags.get("mlflow.parentRunId") for run in runs}
        for run in runs:
            if run.info.run_id in own_runs | parents:
                continue
            parent = run.data.tags.get("mlflow.parentRunId")
            if parent == self._parent:
                is_duplicate = _identity_of_run(run) in self._runs_by_trial
            else:
                is_duplicate = parent is None and run.info.start_time == start_time
            if is_duplicate:
                self._client.delete_run(run.info.run_id)

    def _add_progress(self, state: SweepState, index: int, at: float) -> None:
        time_ms, step = _ms(at), index + 1
        values = mlflow_fields.sweep_metrics(state, step)
        metrics = [Metric(name, value, time_ms, step) for name, value in values.items()]
        self._client.log_batch(self._parent, metrics=metrics)

    def _write_artifacts(self, files: dict[str, str]) -> None:
        for name, text in files.items():
            if self._folder is None:
                self._client.log_text(self._parent, text, name)
            else:
                write_durably(self._folder / name, text, below=self._folder)


def _identity(record: Record) -> _Identity:
    return str(record.number), _ms(record.started_at)


def _identity_of_run(run: Run) -> _Identity:
    return run.data.tags.get("plimsoll.trial", ""), run.info.start_time


def _has_ended(run: Run) -> bool:
    return bool(run.info.status != "RUNNING")


def _metrics(record: Record, state: SweepState) -> Iterator[Metric]:
    ended_ms = _ms(record.ended_at)
    values = {
        **mlflow_fields.trial_metrics(record, state.objective),
        **validation_metrics(record, state),
    }
    for name, value in values.items():
        yield Metric(name, value, ended_ms, 0)
    for name, step, value, at in mlflow_fields.series(record):
        yield Metric(name, value, _ms(at), step)


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
