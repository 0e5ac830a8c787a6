"""Proofs in words: one wording for views, reports and MLflow."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.core.state import SweepState
from orchestrator.core.validation import LossCheck, loss_check
from orchestrator.view.words import gib, outcome_words, plural, spread
from search_spaces.outcome import Measured
from search_spaces.record import Record


def proof_words(proof: Record, state: SweepState) -> str:
    """How a proof ended: `failed: why`, or `holds: 46 steps at 198.1 ± 1.1 samples/s, ...`."""
    outcome = proof.outcome
    if (reason := state.why_failed(proof)) is not None:
        return f"failed: {' '.join(reason.split())}"
    if not isinstance(outcome, Measured):
        return outcome_words(outcome)  # it was stopped
    memory, steps = outcome.memory, len(outcome.losses)
    told = f"{plural(steps, 'step')} at {spread(outcome.samples_per_second)} samples/s"
    told += f", peak {gib(memory.peak_bytes)} GiB, {100 * memory.share:.0f} % of the limit"
    if (done := outcome.proof) is not None:
        told += (
            f", with {done.worst_steps} steps of the longest samples, an evaluation of them and a"
            f" checkpoint of {gib(done.checkpoint_bytes)} GiB in {done.checkpoint_seconds:.1f} s"
        )
    return f"holds: {told}; {_losses(check_of(proof, state))}"


def check_of(proof: Record, state: SweepState) -> LossCheck | None:
    """The proof's losses beside the reference's."""
    before = [other.number for other in state.proofs if other.ended_at < proof.ended_at]
    doubted = [number for number in before if number in state.failed_proofs]
    return loss_check(proof, state.records, state.space.baseline, state.spec, doubted)


def _losses(check: LossCheck | None) -> str:
    if check is None:
        return "no other lossless plan was measured to hold its losses against"
    apart = f"{100 * check.apart:.2g} %" if check.apart else "a digit"
    return (
        f"losses within {apart} of those of trial {check.reference}"
        f" over {plural(check.steps, 'step')} ({100 * check.tolerance:g} % may be)"
    )


def proof_sentences(state: SweepState) -> Iterator[str]:
    """Whether the best plan is proven and how, and which proofs failed; nothing without a best."""
    if state.best is None:
        return
    proof = state.proven
    failed = [each for each in state.proofs if state.why_failed(each) is not None]
    if proof is not None:
        yield f"proven in workers of its own: the proof {proof_words(proof, state)}"
    elif not state.spec.proof.enabled:
        yield "not proven: proof.enabled is false"
    elif state.to_prove is not None:
        yield "not proven yet: `plimsoll tune` proves the best plan when its search is over"
    else:
        yield f"not proven: {plural(len(failed), 'proof')} failed"
    for each in failed:
        yield f"the proof of trial {each.number} {proof_words(each, state)}"
