"""Identity of the job that a study measures: numbers of two jobs cannot be compared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import optuna

from search_spaces.errors import StudyError
from search_spaces.spec.schema import SweepSpec
from search_spaces.spec.sections import KEYS_OUTSIDE_MEASUREMENT

_SUBJECT = "subject"


# jobs that agree in these sections can learn from each other's measurements
_TRANSFERABLE = ("model", "data", "train")


def job_of(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the job that a study measures, by section of the specification.

    Empty if the study does not say. Of each accelerator it holds the memory limit only.

    Args:
        attributes: User attributes of the study.
    """
    return dict(attributes.get(_SUBJECT, {}))


def is_same_job(attributes: Mapping[str, Any], spec: SweepSpec) -> bool:
    """Returns True if the study with these attributes measures the spec's job, on any cluster."""
    job = spec.model_dump(mode="json", include=set(_TRANSFERABLE))
    stored = attributes.get(_SUBJECT, {})
    return all(stored.get(section) == job[section] for section in _TRANSFERABLE)


def check_same_job(study: optuna.Study, spec: SweepSpec, name: str, *, measured: bool) -> None:
    """Stores the job of a new study; compares the job with that of an old one.

    Args:
        study: The study, which stores the job.
        spec: The job of this sweep.
        name: Name of the study for messages.
        measured: Whether the study holds records; without any it accepts another job.

    Raises:
        StudyError: If the jobs differ; names the keys that changed.
    """
    job = spec.model_dump(mode="json", include={"model", "data", "train", "cluster"})
    for key in KEYS_OUTSIDE_MEASUREMENT:
        job["cluster"].pop(key)
    # prices and forecast settings of an accelerator change no measurement
    kinds = job["cluster"].pop("accelerators")
    if kinds:
        limits = {kind: settings["memory_gib"] for kind, settings in kinds.items()}
        job["cluster"]["accelerators"] = limits
    stored = study.user_attrs.get(_SUBJECT)
    if stored is None or not measured:
        study.set_user_attr(_SUBJECT, job)
        return
    changed = [
        f"{section}.{key}"
        for section in job
        for key in {**stored.get(section, {}), **job[section]}
        if stored.get(section, {}).get(key) != job[section].get(key)
    ]
    if changed:
        raise StudyError(
            f"study {name} holds measurements of another job ({', '.join(changed)} changed);"
            " choose another study.name, or restore the old values"
        )
