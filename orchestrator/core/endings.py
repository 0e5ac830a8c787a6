"""What the end of a group means for its trial, and what an outcome means for its group."""

from __future__ import annotations

from dataclasses import dataclass

from search_spaces.outcome import (
    Costs,
    Crashed,
    Diverged,
    Measured,
    Outcome,
    OutOfMemory,
    TimedOut,
)

# Memory that may stay behind after a trial before its group is replaced: libraries that load
# lazily and allocator caches creep by some tens of MiB, a leaked model takes more of the limit.
RESIDUAL_SHARE = 0.05
RESIDUAL_FLOOR_BYTES = 64 * 2**20

DRIVER_DIED_TWICE = Crashed(
    cause="driver_lost",
    rank=None,
    phase="running the trial",
    detail="the driver died in this trial, and again when it was run once more",
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
    host_memory: bool  # Ray's memory monitor killed a worker
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


def reason_to_replace(outcome: Outcome) -> str | None:
    """Why the group that gave this outcome cannot be trusted any more; None if it can."""
    match outcome:
        case TimedOut():
            return "a trial did not end before its deadline"
        case Crashed(cause="worker_died" | "collective" | "device_error" as cause):
            return f"a trial ended with {cause.replace('_', ' ')}"
        case Measured(costs=costs, memory=memory):
            return _left_behind(costs, memory.limit_bytes)
        case OutOfMemory(costs=costs, limit_bytes=limit_bytes):
            return _left_behind(costs, limit_bytes)
        case Crashed(costs=costs) | Diverged(costs=costs):
            return _left_behind(costs, None)
        case _:
            return None


def _left_behind(costs: Costs | None, limit_bytes: int | None) -> str | None:
    allowed = max(RESIDUAL_FLOOR_BYTES, RESIDUAL_SHARE * (limit_bytes or 0))
    if costs is None or costs.residual_bytes <= allowed:
        return None
    return f"{costs.residual_bytes / 2**20:.0f} MiB did not come back after a trial"
