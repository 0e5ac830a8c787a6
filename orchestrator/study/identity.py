"""Identity of the job that a study measures: numbers of two jobs cannot be compared."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import optuna

from search_spaces.errors import StudyError
from search_spaces.specification.schema import SweepSpec
from search_spaces.specification.sections import KEYS_OUTSIDE_MEASUREMENT

_SUBJECT = "subject"


# jobs that agree in these sections can learn from each other's measurements
_TRANSFERABLE = ("model", "data", "train")


def job_of(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the job in the attributes of a study, by section; empty without one."""
    subject = attributes.get(_SUBJECT)
    sections = subject.items() if isinstance(subject, dict) else ()
    return {name: keys for name, keys in sections if isinstance(keys, dict)}


def _job(spec: SweepSpec, *more: str) -> dict[str, Any]:
    job = spec.model_dump(mode="json", include={*_TRANSFERABLE, *more})
    if spec.model.pickle:  # its name without the folder
        job["model"]["name"] = Path(spec.model.name).name
    return job


def is_same_job(attributes: Mapping[str, Any], spec: SweepSpec) -> bool:
    """Returns True if the study with these attributes measures the spec's job, on any cluster."""
    job = _job(spec)
    stored = job_of(attributes)
    return all(stored.get(section) == job[section] for section in _TRANSFERABLE)


def check_same_job(study: optuna.Study, spec: SweepSpec, name: str, *, measured: bool) -> None:
    """Stores the job of a new study; compares the job with that of an old one.

    A study that holds no records, so that nothing is `measured`, accepts another job.

    Raises:
        StudyError: If the jobs differ; names the keys that changed.
    """
    job = _job(spec, "cluster")
    for key in KEYS_OUTSIDE_MEASUREMENT:
        job["cluster"].pop(key)
    if _SUBJECT not in study.user_attrs or not measured:
        study.set_user_attr(_SUBJECT, job)
        return
    stored = job_of(study.user_attrs)
    pickle = spec.model.pickle
    changed = [
        f"code or data of {spec.model.title}" if key == "name" and pickle else f"{section}.{key}"
        for section in job
        for key in {**stored.get(section, {}), **job[section]}
        if stored.get(section, {}).get(key) != job[section].get(key)
    ]
    if changed:
        raise StudyError(
            f"study {name} holds measurements of another job ({', '.join(changed)} changed);"
            " choose another study.name, or restore the old values"
        )
