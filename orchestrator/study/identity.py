"""What a study measures: numbers of two jobs do not compare."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import optuna

from search_spaces.errors import StudyError
from search_spaces.spec.schema import SweepSpec
from search_spaces.spec.sections import ASIDE

_SUBJECT = "subject"


# of two jobs whose measurements tell of each other
_SAME = ("model", "data", "train")


def subject_of(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """What a study measured, section by section as a specification has it; empty: it is not told.

    Of accelerators the memory limits alone are kept.
    """
    return dict(attributes.get(_SUBJECT, {}))


def is_same_job(attributes: Mapping[str, Any], spec: SweepSpec) -> bool:
    """Whether the study with these attributes measured the spec's job, on whatever cluster."""
    subject = spec.model_dump(mode="json", include=set(_SAME))
    known = attributes.get(_SUBJECT, {})
    return all(known.get(section) == subject[section] for section in _SAME)


def check_subject(study: optuna.Study, spec: SweepSpec, name: str, *, measured: bool) -> None:
    """Writes down what a new study measures, and compares it with what an old one has measured.

    Args:
        study: The study, which keeps it.
        spec: What is to be measured now.
        name: What the user calls the study.
        measured: Whether it holds records; without any, nothing stands against another job.

    Raises:
        StudyError: If they differ; names what changed.
    """
    subject = spec.model_dump(mode="json", include={"model", "data", "train", "cluster"})
    for key in ASIDE:
        subject["cluster"].pop(key)
    # what a kind of nodes costs changes no measurement, nor does what forecasts take it for
    kinds = subject["cluster"].pop("accelerators")
    if kinds:
        limits = {name: told["memory_gib"] for name, told in kinds.items()}
        subject["cluster"]["accelerators"] = limits
    known = study.user_attrs.get(_SUBJECT)
    if known is None or not measured:
        study.set_user_attr(_SUBJECT, subject)
        return
    changed = [
        f"{section}.{key}"
        for section in subject
        for key in {**known.get(section, {}), **subject[section]}
        if known.get(section, {}).get(key) != subject[section].get(key)
    ]
    if changed:
        raise StudyError(
            f"study {name} holds measurements of another job ({', '.join(changed)} changed);"
            " choose another study.name, or put the old values back"
        )
