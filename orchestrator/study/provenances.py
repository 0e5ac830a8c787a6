"""Provenance of each driver that worked on a study: an attribute of the study."""

from __future__ import annotations

from dataclasses import replace

import optuna
from pydantic import TypeAdapter

from search_spaces.provenance import Provenance

_KEY = "provenance"
_PROVENANCES: TypeAdapter[tuple[Provenance, ...]] = TypeAdapter(tuple[Provenance, ...])


def keep_provenance(study: optuna.Study, provenance: Provenance) -> None:
    """Adds the provenance of a driver that begins, unless it is that of the one before."""
    kept = kept_provenances(study)
    if kept and replace(provenance, at=kept[-1].at) == kept[-1]:
        return
    study.set_user_attr(_KEY, _PROVENANCES.dump_python((*kept, provenance), mode="json"))


def kept_provenances(study: optuna.Study) -> tuple[Provenance, ...]:
    """The provenances that differ from the one before, oldest first."""
    return _PROVENANCES.validate_python(study.user_attrs.get(_KEY, ()))
