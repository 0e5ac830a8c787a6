"""A proof as MLflow shows it, beside what it shows of every trial. Plain values."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.core.state import SweepState
from orchestrator.report.format import check_of, proof_words
from search_spaces.outcome import Measured
from search_spaces.record import Record
from search_spaces.spec.schema import GIB


def proof_tags(record: Record, state: SweepState) -> Mapping[str, str]:
    """Tells a proof's run from a trial's, and how it ended."""
    if not record.proof:
        return {"kind": "trial"}
    return {
        "kind": "proof",
        "proof_of": str(record.number),
        "proof_holds": str(state.why_failed(record) is None).lower(),
        "reason": proof_words(record, state),
    }


def proof_metrics(record: Record, state: SweepState) -> Mapping[str, float]:
    """What a proof measured that a trial does not; nothing for a trial."""
    outcome = record.outcome
    if not isinstance(outcome, Measured) or (done := outcome.proof) is None:
        return {}
    check = check_of(record, state)
    found = {
        "worst_steps": float(done.worst_steps),
        "evaluation_seconds": done.evaluation_seconds,
        "evaluation_loss": done.evaluation_loss,
        "checkpoint_seconds": done.checkpoint_seconds,
        "checkpoint_gib": done.checkpoint_bytes / GIB,
        "loss_apart": None if check is None else check.apart,
    }
    return {name: value for name, value in found.items() if value is not None}
