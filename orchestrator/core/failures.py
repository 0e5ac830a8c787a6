"""Failure policy: the consequences of an outcome for its worker group, its plan and the sweep."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeGuard

from orchestrator.core.reasons import (
    DeadlineMissed,
    MemoryNotReleased,
    ReplacementReason,
    SameFailure,
    WorkersCrashed,
)
from orchestrator.core.records import Record
from search_spaces.trial import (
    Cancelled,
    Costs,
    Crashed,
    CrashKind,
    Diverged,
    DoesNotTrain,
    Measured,
    Outcome,
    OutOfMemory,
    Refused,
    TimedOut,
)

# Memory that a trial may leave allocated before its group is replaced. Libraries that load lazily
# and allocator caches grow by some tens of MiB; a leaked model takes more of the limit.
RESIDUAL_SHARE = 0.05
RESIDUAL_FLOOR_BYTES = 64 * 2**20

Doing = Literal["starting", "running the trial"]
MAX_SAME_FAILURES = 4  # plans that fail with the same error before the search ends


def _died(cause: CrashKind, detail: str) -> Crashed:
    return Crashed(cause=cause, rank=None, phase="running the trial", detail=detail)


DRIVER_DIED_TWICE = _died(
    "driver_lost", "the driver died during this trial, and again during its retry"
)
RUNNER_DIED = _died("worker_died", "the actor running the trial died without a report")
CONTACT_LOST = Crashed(
    cause="start_failed",
    rank=None,
    phase="starting",
    detail="the actor that hands out trials did not answer",
)
GROUP_OVERDUE = _died("worker_died", "its worker group did not report within its deadline")


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureDecision:
    """Consequences of one trial's outcome.

    Attributes:
        retry: Run it again, in other processes, and on other nodes if there are any.
        replace: Reason to replace its group, None to reuse it.
        prune: The plan itself caused the failure, so that plans near it, and those that need more
            memory, may fail too.
    """

    retry: bool = False
    replace: ReplacementReason | None = None
    prune: bool = False


def failure_decision(outcome: Outcome, *, second: bool = False) -> FailureDecision:
    """Decides what follows from an outcome.

    | outcome | retry | group replaced | plan pruned |
    |---|---|---|---|
    | measured | no | if memory was not released | no |
    | out of memory, diverged, untrained, raised, layout | no | if memory was not released | yes |
    | worker died, collective broke | once | yes | if twice |
    | device error | once | yes | if twice |
    | workers did not come up | once | yes | no |
    | disk full | once | if memory was not released | no |
    | missed its deadline | no | yes | yes |
    | the driver died during it twice | no | no | no |

    A second crash is stored only after a plan that was measured before has run again: see `blame`.

    Args:
        outcome: The outcome of a trial.
        second: True if the trial was a retry.
    """
    match outcome:
        case TimedOut():
            return FailureDecision(replace=DeadlineMissed(), prune=True)
        case Crashed(cause="worker_died" | "collective" | "device_error" | "start_failed" as cause):
            prune = second and cause != "start_failed"
            return FailureDecision(
                retry=not second, replace=WorkersCrashed(cause=cause), prune=prune
            )
        case Crashed(cause="disk_full", costs=costs):
            return FailureDecision(retry=not second, replace=_unreleased(costs, None))
        case Measured(costs=costs, memory=memory):
            return FailureDecision(replace=_unreleased(costs, memory.limit_bytes))
        case OutOfMemory(costs=costs, limit_bytes=limit_bytes):
            return FailureDecision(replace=_unreleased(costs, limit_bytes), prune=True)
        case Crashed(cause="driver_lost") | Cancelled() | Refused():
            return FailureDecision()
        case Crashed(costs=costs) | Diverged(costs=costs) | DoesNotTrain(costs=costs):
            return FailureDecision(replace=_unreleased(costs, None), prune=True)


def same_failure(records: Sequence[Record]) -> SameFailure | None:
    """Returns the reason why further trials would fail as well, None if they may succeed.

    No plan has trained, and all failed with the same error.

    Args:
        records: All records of the study, in the order in which the trials ended; cancelled ones
            are ignored.
    """
    ended = [record.outcome for record in records if not isinstance(record.outcome, Cancelled)]
    if len(ended) < MAX_SAME_FAILURES:
        return None
    first, errors = ended[0], {_own_error(outcome) for outcome in ended}
    if len(errors) != 1 or "" in errors:
        return None
    cause = first.cause if isinstance(first, Crashed) else "does_not_train"
    return SameFailure(trials=len(ended), cause=cause, error=errors.pop())


def cause_of_all(records: Sequence[Record]) -> Crashed | None:
    """Returns the first crash if every trial crashed; None if plan or model explain one ending."""
    ended = [record.outcome for record in records if not isinstance(record.outcome, Cancelled)]
    crashes = [one for one in ended if isinstance(one, Crashed) and one.cause != "layout"]
    return crashes[0] if crashes and len(crashes) == len(ended) else None


def is_machine_failure(outcome: Outcome) -> TypeGuard[Crashed]:
    """Returns True for a failure that usually comes from the machine, not from the plan."""
    return isinstance(outcome, Crashed) and outcome.cause in ("start_failed", "disk_full")


def is_loss_of_processes(outcome: Outcome) -> TypeGuard[Crashed]:
    """Returns True for a failure that a broken machine can cause as well as a plan."""
    dead = ("worker_died", "collective", "device_error")
    return is_machine_failure(outcome) or (isinstance(outcome, Crashed) and outcome.cause in dead)


def _own_error(outcome: Outcome) -> str:
    if isinstance(outcome, DoesNotTrain):
        return outcome.norm
    own = ("exception", "layout", "device_error", "worker_died")
    return outcome.detail if isinstance(outcome, Crashed) and outcome.cause in own else ""


def _unreleased(costs: Costs | None, limit_bytes: int | None) -> MemoryNotReleased | None:
    allowed = max(RESIDUAL_FLOOR_BYTES, RESIDUAL_SHARE * (limit_bytes or 0))
    if costs is None or costs.residual_bytes <= allowed:
        return None
    return MemoryNotReleased(residual_bytes=costs.residual_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFailure:
    """The death of a worker group while it was starting or running a trial."""

    doing: Doing
    host_memory: bool = False  # Ray's memory monitor or the kernel killed a worker
    rank: int | None = None
    detail: str


def outcome_of_group_failure(death: GroupFailure, announced: tuple[Outcome, ...] = ()) -> Outcome:
    """Returns the outcome of the trial that ran when its group died.

    An outcome that a rank announced before it died takes precedence: when a group breaks because
    one rank ran out of memory, the trial is out of memory, not crashed. Workers that did not come
    up have run nothing of the plan.
    """
    if death.doing == "starting":
        return Crashed(
            cause="start_failed", rank=death.rank, phase=death.doing, detail=death.detail
        )
    if failure := announced_failure(announced):
        return failure
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


def announced_failure(announced: Sequence[Outcome]) -> Outcome | None:
    """Returns the failure that ranks announced, None if that is only a broken collective."""
    for outcome in announced:
        if isinstance(outcome, OutOfMemory | Diverged | DoesNotTrain):
            return outcome
    crashes = [outcome for outcome in announced if isinstance(outcome, Crashed)]
    return next((crash for crash in crashes if crash.cause != "collective"), None)


def may_be_node_loss(outcome: Outcome) -> bool:
    """Returns True if the loss of a node can have caused this outcome."""
    match outcome:
        case Crashed(cause="worker_died" | "collective" | "start_failed") | TimedOut():
            return True
        case _:
            return False
