"""A study in its storage: found or made, and of this job."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

import optuna
from optuna.samplers import RandomSampler
from optuna.storages import RDBStorage

from orchestrator.study.locks import refuse_second_driver
from orchestrator.study.records import RECORD
from orchestrator.study.storage import brief_storage, storage_errors, storage_url
from orchestrator.study.subject import check_subject
from search_spaces.spec.objective_section import Metric
from search_spaces.spec.schema import SweepSpec

VALUE_NAMES: Mapping[Metric, str] = {
    "samples_per_second": "samples per second",
    "samples_per_price": "samples per unit of price",
    "headroom": "share of memory left free",
}


def check_study(spec: SweepSpec, name: str) -> None:
    """Tries the study before a sweep starts; makes it if there is none.

    Raises:
        StudyError: If the storage cannot be opened, another driver tunes the study, or it
            measured another job.
    """
    url = storage_url(spec, name)
    with storage_errors(url), brief_storage(url) as storage:
        refuse_second_driver(spec, name)
        study_in(storage, spec, name)


def study_in(storage: RDBStorage, spec: SweepSpec, name: str) -> optuna.Study:
    """The study, made if there is none.

    Raises:
        StudyError: If it measured another job.
    """
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(
        study_name=name,
        storage=storage,
        direction="maximize",
        sampler=RandomSampler(),  # never asked: proposers are
        load_if_exists=True,
    )
    measured = any(RECORD in trial.user_attrs for trial in study.get_trials(deepcopy=False))
    check_subject(study, spec, name, measured=measured)
    _name_values(study, spec.objective.metric)
    return study


def _name_values(study: optuna.Study, metric: Metric) -> None:
    """Names the study's values, as the axes of Optuna's plots and of optuna-dashboard show them."""
    names = [VALUE_NAMES[metric]]
    if study.metric_names != names:
        with warnings.catch_warnings():  # Optuna's that it may still change this, in each sweep
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            study.set_metric_names(names)
