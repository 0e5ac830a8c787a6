"""What the end of a group means for its trial, and what an outcome means for its group."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.core.endings import (
    RESIDUAL_FLOOR_BYTES,
    RESIDUAL_SHARE,
    Death,
    outcome_of_death,
    reason_to_replace,
)
from search_spaces.outcome import (
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
from search_spaces.spec.schema import GIB
from tests.orchestrator.records import make_costs, make_measured, make_oom

DEATH = Death(doing="running the trial", host_memory=False, rank=1, detail="ActorDiedError: killed")
KILLED = replace(DEATH, host_memory=True, detail="OutOfMemoryError: the node was full")


def crash(cause: CrashKind, **changes: object) -> Crashed:
    return replace(
        Crashed(cause=cause, rank=0, phase="forward", detail="RuntimeError: so"), **changes
    )


NAN = Diverged(step=3, loss="nan", costs=make_costs())
BROKEN = crash("collective")
RAISED = crash("exception")


@pytest.mark.parametrize(
    ("announced", "meant"),
    [
        ((BROKEN, make_oom(1.4)), make_oom(1.4)),  # the cause, not what followed from it
        ((RAISED, make_oom(1.4)), make_oom(1.4)),
        ((NAN, BROKEN), NAN),
        ((RAISED, NAN), NAN),
        ((BROKEN, RAISED), RAISED),
        ((BROKEN, crash("device_error")), crash("device_error")),
        ((make_measured(), RAISED), RAISED),
    ],
)
@pytest.mark.parametrize("death", [DEATH, KILLED], ids=["died", "killed"])
def test_what_a_rank_announced_goes_first(
    announced: tuple[Outcome, ...], meant: Outcome, death: Death
) -> None:
    assert outcome_of_death(death, announced) == meant


@pytest.mark.parametrize("announced", [(), (BROKEN,), (BROKEN, make_measured())])
def test_rays_word_counts_where_no_rank_knew_better(announced: tuple[Outcome, ...]) -> None:
    killed = outcome_of_death(KILLED, announced)
    assert isinstance(killed, OutOfMemory)
    assert (killed.where, killed.rank, killed.wanted_bytes) == ("host", 1, None)
    assert killed.detail == KILLED.detail

    died = outcome_of_death(DEATH, announced)
    assert isinstance(died, Crashed)
    assert (died.cause, died.rank, died.phase) == ("worker_died", 1, "running the trial")


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
        (TimedOut(deadline_seconds=60.0, detail="so"), "did not end before its deadline"),
        (crash("worker_died"), "ended with worker died"),
        (BROKEN, "ended with collective"),
        (crash("device_error"), "ended with device error"),
        # memory that did not come back: 64 MiB, or 5 % of the limit where that is more
        (left(FLOOR, measured_under(SMALL_LIMIT)), None),
        (left(FLOOR + MIB, measured_under(SMALL_LIMIT)), "65 MiB did not come back"),
        (left(SHARE, measured_under(LARGE_LIMIT)), None),
        (left(SHARE + MIB, measured_under(LARGE_LIMIT)), "4097 MiB did not come back"),
        (left(FLOOR + MIB, make_oom(limit_bytes=SMALL_LIMIT)), "65 MiB did not come back"),
        (left(SHARE, make_oom(limit_bytes=LARGE_LIMIT)), None),
        (left(FLOOR + MIB, make_oom(limit_bytes=None)), "65 MiB did not come back"),
        (left(FLOOR + MIB, NAN), "65 MiB did not come back"),
        (left(FLOOR + MIB, RAISED), "65 MiB did not come back"),
        (left(FLOOR, RAISED), None),
    ],
)
def test_when_a_group_is_replaced(outcome: Outcome, words: str | None) -> None:
    reason = reason_to_replace(outcome)

    assert (reason is None) == (words is None)
    assert words is None or words in str(reason)
