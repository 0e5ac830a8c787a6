"""What the end of a group means for its trial."""

from __future__ import annotations

from dataclasses import dataclass

from search_spaces.outcome import (
    Crashed,
    Diverged,
    Outcome,
    OutOfMemory,
    TimedOut,
)

DRIVER_DIED_TWICE = Crashed(
    cause="driver_lost",
    rank=None,
    phase="running the trial",
    detail="the driver died in this trial, which was run once more already",
)
RUNNER_DIED = Crashed(
    cause="worker_died",
    rank=None,
    phase="running the trial",
    detail="the actor that ran the trial died without a report",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """How a group's training run ended while something was awaited from it."""

    doing: str  # what was awaited: "starting", "running the trial"
    host_memory: bool  # Ray's memory monitor or the kernel killed a worker
    rank: int | None
    detail: str


def outcome_of_death(death: Death, announced: tuple[Outcome, ...]) -> Outcome:
    """The outcome of the trial under way when a group died.

    What a rank announced of itself before the end goes first: a group that breaks because one
    rank ran out of memory has an out-of-memory, not a crash.
    """
    for outcome in announced:
        if isinstance(outcome, OutOfMemory | Diverged):
            return outcome
    for outcome in announced:
        if isinstance(outcome, Crashed) and outcome.cause != "collective":
            return outcome
    if death.host_memory:
        return OutOfMemory(
            where="host",
            wanted_bytes=None,
            limit_bytes=None,
            rank=death.rank,
            phase=death.doing,
            detail=death.detail,
            costs=None,
        )
    return Crashed(cause="worker_died", rank=death.rank, phase=death.doing, detail=death.detail)


def may_be_a_lost_node(outcome: Outcome) -> bool:
    """Whether the outcome of a group that died is what it is when a node goes."""
    match outcome:
        case Crashed(cause="worker_died" | "collective") | TimedOut():
            return True
        case _:
            return False
