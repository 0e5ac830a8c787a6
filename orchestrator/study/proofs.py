"""Proofs in a study: attributes of the study and no trials of it.

A second trial of the same plan would be one more point to every sampler, and a trial that failed
in its evaluation or its checkpoint would say of the space what is not so.
"""

from __future__ import annotations

import optuna

from orchestrator.study.records import record_from_json, record_to_json
from search_spaces.record import Record

_PREFIX = "proof of trial "


def keep_proof(study: optuna.Study, proof: Record) -> None:
    """Writes a proof down, beside an older one of the same trial; one commit."""
    name = f"{_PREFIX}{proof.number} at {proof.started_at:.3f}"
    study.set_user_attr(name, record_to_json(proof))


def kept_proofs(study: optuna.Study) -> tuple[Record, ...]:
    """All that were kept, in the order in which they ended."""
    found = (
        record_from_json(value)
        for name, value in study.user_attrs.items()
        if name.startswith(_PREFIX)
    )
    return tuple(sorted(found, key=lambda proof: proof.ended_at))
