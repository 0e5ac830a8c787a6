"""The failure policy, as tables."""

from dataclasses import replace

import pytest

from orchestrator.core.failures import (
    MAX_SAME_FAILURES,
    RESIDUAL_FLOOR_BYTES,
    RESIDUAL_SHARE,
    failure_decision,
    same_failure,
)
from orchestrator.core.reasons import (
    DeadlineMissed,
    MemoryNotReleased,
    ReplacementReason,
    SameFailure,
    WorkersCrashed,
)
from search_spaces.specification.schema import GIB
from search_spaces.trial import (
    Cancelled,
    Crashed,
    CrashKind,
    Diverged,
    DoesNotTrain,
    Measured,
    Outcome,
    OutOfMemory,
    Refused,
    Stopped,
    TimedOut,
)
from tests.orchestrator.core.values import state_after
from tests.outcomes import make_costs, make_measured, make_oom


def crash(cause: CrashKind, detail: str = "RuntimeError: so", **changes: object) -> Crashed:
    return replace(Crashed(cause=cause, rank=0, phase="forward", detail=detail), **changes)


NAN = Diverged(step=3, loss="nan", costs=make_costs())
BROKEN = crash("collective")
RAISED = crash("exception")
LATE = TimedOut(deadline_seconds=60.0, detail="so")

MIB = 2**20
SMALL_LIMIT, LARGE_LIMIT = GIB, 80 * GIB
FLOOR = RESIDUAL_FLOOR_BYTES
SHARE = int(RESIDUAL_SHARE * LARGE_LIMIT)


def left(residual_bytes: int, outcome: Outcome) -> Outcome:
    assert isinstance(outcome, Measured | OutOfMemory | Crashed | Diverged)
    costs = replace(make_costs(), residual_bytes=residual_bytes)
    return replace(outcome, costs=costs)


def measured_under(limit_bytes: int) -> Measured:
    outcome = make_measured()
    return replace(outcome, memory=replace(outcome.memory, limit_bytes=limit_bytes))


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [
        (make_measured(), None),
        (make_oom(), None),
        (NAN, None),
        (RAISED, None),
        (Refused(rule="cluster_has_room", detail="so"), None),
        (TimedOut(deadline_seconds=60.0, detail="so"), DeadlineMissed()),
        (crash("worker_died"), WorkersCrashed(cause="worker_died")),
        (BROKEN, WorkersCrashed(cause="collective")),
        (crash("device_error"), WorkersCrashed(cause="device_error")),
        (crash("start_failed"), WorkersCrashed(cause="start_failed")),
        # memory that was not released: 64 MiB, or 5 % of the limit where that is more
        (left(FLOOR, measured_under(SMALL_LIMIT)), None),
        (
            left(FLOOR + MIB, measured_under(SMALL_LIMIT)),
            MemoryNotReleased(residual_bytes=FLOOR + MIB),
        ),
        (left(SHARE, measured_under(LARGE_LIMIT)), None),
        (
            left(SHARE + MIB, measured_under(LARGE_LIMIT)),
            MemoryNotReleased(residual_bytes=SHARE + MIB),
        ),
        (
            left(FLOOR + MIB, make_oom(limit_bytes=None)),
            MemoryNotReleased(residual_bytes=FLOOR + MIB),
        ),
        (left(FLOOR + MIB, RAISED), MemoryNotReleased(residual_bytes=FLOOR + MIB)),
        (left(FLOOR, RAISED), None),
    ],
)
def test_when_a_group_is_replaced(outcome: Outcome, reason: ReplacementReason | None) -> None:
    assert failure_decision(outcome).replace == reason


@pytest.mark.parametrize(
    ("outcome", "again", "prune", "prune_at_last"),
    [
        (make_measured(), False, False, False),
        (make_oom(), False, True, True),
        (NAN, False, True, True),
        (RAISED, False, True, True),
        (LATE, False, True, True),
        (crash("driver_lost"), False, False, False),
        (crash("worker_died"), True, False, True),
        (BROKEN, True, False, True),
        (crash("device_error"), True, False, True),
        (crash("disk_full"), True, False, False),
        (crash("start_failed"), True, False, False),
        (Refused(rule="cluster_has_room", detail="so"), False, False, False),
        (Cancelled(cause=Stopped(by="Ctrl-C")), False, False, False),
    ],
)
def test_what_is_run_again_and_what_is_held_against_the_plan(
    outcome: Outcome, again: bool, prune: bool, prune_at_last: bool
) -> None:
    first, second = failure_decision(outcome), failure_decision(outcome, second=True)

    assert (first.retry, first.prune) == (again, prune)
    assert (second.retry, second.prune) == (False, prune_at_last)
    assert second.replace == first.replace


FULL = crash("disk_full", "OSError: No space left")
ODD = crash("exception", "ValueError: other")


@pytest.mark.parametrize(
    ("outcomes", "reason"),
    [
        ([], None),
        ([RAISED] * (MAX_SAME_FAILURES - 1), None),
        (
            [RAISED] * MAX_SAME_FAILURES,
            SameFailure(trials=4, cause="exception", error=RAISED.detail),
        ),
        (
            [RAISED, Cancelled(cause=Stopped(by="Ctrl-C"))] * MAX_SAME_FAILURES,
            SameFailure(trials=4, cause="exception", error=RAISED.detail),
        ),
        ([RAISED] * MAX_SAME_FAILURES + [ODD], None),
        ([make_measured()] + [RAISED] * MAX_SAME_FAILURES, None),
        ([make_oom()] * 9, None),
        # a label out of range fails every plan, and takes its device with it
        (
            [crash("device_error", "AcceleratorError: so")] * MAX_SAME_FAILURES,
            SameFailure(trials=4, cause="device_error", error="AcceleratorError: so"),
        ),
        ([crash("worker_died", f"process {number} died") for number in range(9)], None),
        ([FULL] * 9, None),  # `blame` ends that
        (
            [DoesNotTrain(norm="0", costs=None)] * MAX_SAME_FAILURES,
            SameFailure(trials=4, cause="does_not_train", error="0"),
        ),
    ],
)
def test_what_ends_a_sweep(outcomes: list[Outcome], reason: SameFailure | None) -> None:
    records = [
        replace(state_after([make_measured()]).records[0], number=number, outcome=outcome)
        for number, outcome in enumerate(outcomes)
    ]
    assert same_failure(records) == reason
