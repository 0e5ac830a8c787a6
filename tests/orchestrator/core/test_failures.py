"""The failure policy, as tables."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.core.failures import (
    MAX_FULL_DISKS,
    MAX_SAME_FAILURES,
    RESIDUAL_FLOOR_BYTES,
    RESIDUAL_SHARE,
    failure_decision,
    reason_to_stop,
)
from search_spaces.spec.schema import GIB
from search_spaces.trial import (
    Cancelled,
    Crashed,
    CrashKind,
    Diverged,
    Measured,
    Outcome,
    OutOfMemory,
    Refused,
    TimedOut,
)
from tests.orchestrator.core.values import state_after
from tests.orchestrator.records import make_costs, make_measured, make_oom


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
    ("outcome", "words"),
    [
        (make_measured(), None),
        (make_oom(), None),
        (make_oom(costs=None), None),
        (make_oom(where="host", limit_bytes=None), None),
        (NAN, None),
        (RAISED, None),
        (Refused(rule="cluster_has_room", detail="so"), None),
        (Cancelled(detail="so"), None),
        (crash("driver_lost"), None),
        (TimedOut(deadline_seconds=60.0, detail="so"), "missed its deadline"),
        (crash("worker_died"), "crashed (worker died)"),
        (BROKEN, "crashed (collective)"),
        (crash("device_error"), "crashed (device error)"),
        # memory that was not released: 64 MiB, or 5 % of the limit where that is more
        (left(FLOOR, measured_under(SMALL_LIMIT)), None),
        (left(FLOOR + MIB, measured_under(SMALL_LIMIT)), "65 MiB were not released"),
        (left(SHARE, measured_under(LARGE_LIMIT)), None),
        (left(SHARE + MIB, measured_under(LARGE_LIMIT)), "4097 MiB were not released"),
        (left(FLOOR + MIB, make_oom(limit_bytes=SMALL_LIMIT)), "65 MiB were not released"),
        (left(SHARE, make_oom(limit_bytes=LARGE_LIMIT)), None),
        (left(FLOOR + MIB, make_oom(limit_bytes=None)), "65 MiB were not released"),
        (left(FLOOR + MIB, NAN), "65 MiB were not released"),
        (left(FLOOR + MIB, RAISED), "65 MiB were not released"),
        (left(FLOOR, RAISED), None),
    ],
)
def test_when_a_group_is_replaced(outcome: Outcome, words: str | None) -> None:
    reason = failure_decision(outcome).replace

    assert (reason is None) == (words is None)
    assert words is None or words in str(reason)


@pytest.mark.parametrize(
    ("outcome", "again", "prune", "prune_at_last"),
    [
        (make_measured(), False, False, False),
        (make_oom(), False, True, True),
        (make_oom(where="host", limit_bytes=None), False, True, True),
        (NAN, False, True, True),
        (RAISED, False, True, True),
        (crash("layout"), False, True, True),
        (LATE, False, True, True),
        (crash("driver_lost"), False, True, True),
        (crash("worker_died"), True, False, True),
        (BROKEN, True, False, True),
        (crash("device_error"), True, False, True),
        (crash("disk_full"), False, False, False),
        (Refused(rule="cluster_has_room", detail="so"), False, False, False),
        (Cancelled(detail="so"), False, False, False),
    ],
)
def test_what_is_run_again_and_what_is_held_against_the_plan(
    outcome: Outcome, again: bool, prune: bool, prune_at_last: bool
) -> None:
    first, second = failure_decision(outcome), failure_decision(outcome, second=True)

    assert (first.again, first.prune) == (again, prune)
    assert (second.again, second.prune) == (False, prune_at_last)
    assert second.replace == first.replace


# ---------------------------------------------------------------- when it goes no further

FULL = crash("disk_full", "OSError: No space left")
ODD = crash("exception", "ValueError: other")


@pytest.mark.parametrize(
    ("outcomes", "words"),
    [
        ([], None),
        ([RAISED] * (MAX_SAME_FAILURES - 1), None),
        (
            [RAISED] * MAX_SAME_FAILURES,
            "all 4 trials so far failed with the same error: RuntimeErr",
        ),
        ([crash("layout")] * MAX_SAME_FAILURES, "all 4 trials so far failed with the same error"),
        ([RAISED, Cancelled(detail="so")] * MAX_SAME_FAILURES, "all 4 trials so far failed"),
        ([RAISED] * MAX_SAME_FAILURES + [ODD], None),
        ([make_measured()] + [RAISED] * MAX_SAME_FAILURES, None),
        ([make_oom()] * 9, None),
        ([LATE] * 9, None),
        ([crash("worker_died")] * 9, None),
        ([make_measured(), FULL], None),
        ([FULL, make_measured(), FULL], None),
        (
            [make_measured(), *[FULL] * MAX_FULL_DISKS],
            "the last 2 trials ran out of disk space: OSE",
        ),
        ([FULL, Cancelled(detail="so"), FULL], "the last 2 trials ran out of disk space"),
    ],
)
def test_what_ends_a_sweep(outcomes: list[Outcome], words: str | None) -> None:
    records = [
        replace(state_after([make_measured()]).records[0], number=number, outcome=outcome)
        for number, outcome in enumerate(outcomes)
    ]
    reason = reason_to_stop(records)

    assert (reason is None) == (words is None)
    assert words is None or words in str(reason)
