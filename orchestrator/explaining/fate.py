"""What happened to one trial, and why it is not the answer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from orchestrator.core.objective import ranked
from orchestrator.core.state import SweepState
from orchestrator.explaining.changes import Change, changes
from orchestrator.explaining.ground import Ground, anywhere
from orchestrator.explaining.remedies import Shortage, shortage
from orchestrator.places import snapshot_of
from orchestrator.view.figures import speedup
from orchestrator.view.plan_words import lossy_words
from orchestrator.view.proof_words import proof_words
from orchestrator.view.words import number, outcome_words
from search_spaces.errors import StudyError
from search_spaces.estimate import Estimate
from search_spaces.expectation import Expectation
from search_spaces.outcome import Crashed, Measured, OutOfMemory
from search_spaces.plan import Plan
from search_spaces.record import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class Fate:
    """A trial of a study: why it was run, how it ended, and what that means.

    `place` is its rank among the feasible plans, 1 the best, None if it is not feasible; `ratio`
    its speed over the winner's, and `changes` are the knobs in which they differ. `trace` is the
    traceback of a crash.
    """

    study: str
    trial: int
    plan: Plan
    lossy: str  # which knobs change the numerics, empty if none does
    why: str
    kind: str
    outcome: str
    forecast: Expectation | None  # as it was before the trial
    reasons: tuple[str, ...]
    place: int | None
    ratio: Estimate | None
    changes: tuple[Change, ...]
    winner: int | None
    shortage: Shortage | None
    trace: str
    snapshot: str | None  # torch's, of a GPU's memory when it ran out; a pickle
    note: str = ""  # why nothing could be forecast


def trial_named(state: SweepState, number: int) -> Record:
    """The last record of that number.

    Raises:
        StudyError: If there is no such trial.
    """
    for record in reversed(state.records):
        if record.number == number:
            return record
    numbers = sorted(record.number for record in state.records)
    raise StudyError(
        f"study {state.study} has no finished trial {number}: its trials are {numbers[0]} to"
        f" {numbers[-1]}"
    )


def fate(state: SweepState, record: Record, ground: Ground | None, note: str = "") -> Fate:
    """What happened to a trial; without a ground nothing is told of what would have fit."""
    outcome, best = record.outcome, state.best
    order = [one.number for one in ranked(state.records, state.goal)]
    short = None
    if isinstance(outcome, OutOfMemory) and outcome.where == "device" and ground is not None:
        plain = replace(record, plan=anywhere(record.plan))
        short = shortage(plain, outcome, ground)
    ran_out = isinstance(outcome, OutOfMemory)
    kept = snapshot_of(state.spec, state.study, record.number) if ran_out else None
    return Fate(
        study=state.study,
        trial=record.number,
        plan=record.plan,
        lossy=lossy_words(record.plan, state.spec),
        why=record.why,
        kind=outcome.kind,
        outcome=outcome_words(outcome),
        forecast=record.forecast,
        reasons=tuple(_reasons(state, record)),
        place=order.index(record.number) + 1 if record.number in order else None,
        ratio=None if best is None or best == record else speedup(record, best),
        changes=() if best is None else changes(best.plan, record.plan),
        winner=None if best is None else best.number,
        shortage=short,
        snapshot=None if kept is None else str(kept),
        trace=outcome.trace if isinstance(outcome, Crashed) else "",
        note=note,
    )


def _reasons(state: SweepState, record: Record) -> Iterator[str]:
    """Why it is the answer, or is not."""
    best, outcome = state.best, record.outcome
    for proof in state.proofs:
        if proof.number == record.number:
            yield f"its proof {proof_words(proof, state)}"
    if best is not None and best.number == record.number:
        yield "it is the answer"
        return
    if not isinstance(outcome, Measured):
        yield from _unmeasured(outcome)
        return
    yield from state.goal.shortfalls(record)
    if best is None or not state.goal.feasible(record) or record.number in state.failed_proofs:
        return
    if record in state.equals:
        yield f"it is statistically equal to trial {best.number}, {_preferred(state, best)}"
        return
    ours, theirs = state.goal.value(record), state.goal.value(best)
    if ours is not None and theirs is not None:
        yield (
            f"it reaches {number(ours.value)} ({number(ours.low)} to {number(ours.high)}) where"
            f" trial {best.number} reaches {number(theirs.value)} ({number(theirs.low)} to"
            f" {number(theirs.high)}): the intervals lie apart"
        )


def _preferred(state: SweepState, best: Record) -> str:
    proven = state.proven is not None and state.proven.number == best.number
    return "which is the one that was proven" if proven else "which was measured as the fastest"


def _unmeasured(outcome: object) -> Iterator[str]:
    if isinstance(outcome, OutOfMemory) and outcome.where == "host":
        yield (
            "the host's memory ran out, and not the device's: what loader processes, offloaded"
            " state and other work hold there is not forecast"
        )
    elif isinstance(outcome, OutOfMemory) and outcome.wanted_bytes is None:
        yield "its allocator did not say how much was wanted"
