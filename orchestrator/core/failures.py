"""What a sweep does about an outcome: for its group, its plan and the trials after it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from search_spaces.trial import (
    Cancelled,
    Costs,
    Crashed,
    Diverged,
    Measured,
    Outcome,
    OutOfMemory,
    Record,
    Refused,
    TimedOut,
)

# Memory that may stay behind after a trial before its group is replaced: libraries that load
# lazily and allocator caches creep by some tens of MiB, a leaked model takes more of the limit.
RESIDUAL_SHARE = 0.05
RESIDUAL_FLOOR_BYTES = 64 * 2**20

SAME_FAILURES = 4  # plans that all fail in the same words before it is taken to be no plan's doing
FULL_DISKS = 2  # in a row
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
class FailureDecision:
    """What to do about the end of one trial.

    `again`: run it once more, in other processes and on other nodes if there are any. `replace`:
    why its group cannot be trusted any more, None if it can. `prune`: the plan failed by its own
    doing, so that what is known of it tells of those near it, and of those that ask for more.
    """

    again: bool = False
    replace: str | None = None
    prune: bool = False


def failure_decision(outcome: Outcome, *, second: bool = False) -> FailureDecision:
    """What to do about an outcome.

    | outcome | run again | group replaced | plan cut |
    |---|---|---|---|
    | measured | no | if memory stayed behind | no |
    | out of memory, diverged, raised, cannot be laid out | no | if memory stayed behind | yes |
    | worker died, collective broke | once | yes | if twice |
    | device error | once | yes | if twice |
    | disk full | no | no | no |
    | no end before its deadline | no | yes | yes |
    | the driver died twice under it | no | no | yes |

    Args:
        outcome: Of a trial.
        second: Whether it was run once more already.
    """
    match outcome:
        case TimedOut():
            return FailureDecision(replace="a trial did not end before its deadline", prune=True)
        case Crashed(cause="worker_died" | "collective" | "device_error" as cause):
            why = f"a trial ended with {cause.replace('_', ' ')}"
            return FailureDecision(again=not second, replace=why, prune=second)
        case Crashed(cause="disk_full", costs=costs):
            return FailureDecision(replace=_left_behind(costs, None))
        case Measured(costs=costs, memory=memory):
            return FailureDecision(replace=_left_behind(costs, memory.limit_bytes))
        case OutOfMemory(costs=costs, limit_bytes=limit_bytes):
            return FailureDecision(replace=_left_behind(costs, limit_bytes), prune=True)
        case Crashed(costs=costs) | Diverged(costs=costs):
            return FailureDecision(replace=_left_behind(costs, None), prune=True)
        case Cancelled() | Refused():
            return FailureDecision()


def reason_to_stop(records: Sequence[Record]) -> str | None:
    """Why no further trial can be expected to end otherwise, None if one can.

    Either nothing has trained and all plans so far failed in the same words, or the last trials
    found their disk full.

    Args:
        records: All of the study, in the order in which they ended; those that were stopped count
            for nothing.
    """
    ended = [record.outcome for record in records if not isinstance(record.outcome, Cancelled)]
    last = ended[-FULL_DISKS:]
    if len(last) == FULL_DISKS and all(map(_is_full, last)):
        return f"the last {FULL_DISKS} trials found their disk full: {_detail(last[-1])}"
    if len(ended) < SAME_FAILURES:
        return None
    said = {_detail(outcome) for outcome in ended}
    if len(said) != 1 or "" in said:
        return None
    return f"all {len(ended)} trials so far failed in the same way: {said.pop()}"


def _is_full(outcome: Outcome) -> bool:
    return isinstance(outcome, Crashed) and outcome.cause == "disk_full"


def _detail(outcome: Outcome) -> str:
    """What code that raised said; nothing of other outcomes."""
    raised = isinstance(outcome, Crashed) and outcome.cause in ("exception", "layout", "disk_full")
    return outcome.detail if raised and isinstance(outcome, Crashed) else ""


def _left_behind(costs: Costs | None, limit_bytes: int | None) -> str | None:
    allowed = max(RESIDUAL_FLOOR_BYTES, RESIDUAL_SHARE * (limit_bytes or 0))
    if costs is None or costs.residual_bytes <= allowed:
        return None
    return f"{costs.residual_bytes / 2**20:.0f} MiB did not come back after a trial"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFailure:
    """How a group's training run ended while something was awaited from it."""

    doing: str  # what was awaited: "starting", "running the trial"
    host_memory: bool  # Ray's memory monitor or the kernel killed a worker
    rank: int | None
    detail: str


def outcome_of_group_failure(death: GroupFailure, announced: tuple[Outcome, ...]) -> Outcome:
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
