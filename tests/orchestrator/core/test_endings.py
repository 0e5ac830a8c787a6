"""Outcomes of trials whose group died."""

from dataclasses import replace

import pytest

from orchestrator.core.failures import GroupFailure, announced_failure, outcome_of_group_failure
from search_spaces.trial import Crashed, CrashKind, Diverged, Outcome, OutOfMemory
from tests.outcomes import make_costs, make_measured, make_oom

DEATH = GroupFailure(
    doing="running the trial", host_memory=False, rank=1, detail="ActorDiedError: killed"
)
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
        ((NAN, BROKEN), NAN),
        ((BROKEN, RAISED), RAISED),
        ((make_measured(), RAISED), RAISED),
    ],
)
@pytest.mark.parametrize("death", [DEATH, KILLED], ids=["died", "killed"])
def test_what_a_rank_announced_goes_first(
    announced: tuple[Outcome, ...], meant: Outcome, death: GroupFailure
) -> None:
    assert outcome_of_group_failure(death, announced) == meant
    assert announced_failure(announced) == meant  # also where a deadline ended the group


@pytest.mark.parametrize("announced", [(), (BROKEN,), (BROKEN, make_measured())])
def test_rays_word_counts_where_no_rank_knew_better(announced: tuple[Outcome, ...]) -> None:
    assert announced_failure(announced) is None
    killed = outcome_of_group_failure(KILLED, announced)
    assert isinstance(killed, OutOfMemory)
    assert (killed.where, killed.rank, killed.wanted_bytes) == ("host", 1, None)
    assert killed.detail == KILLED.detail

    died = outcome_of_group_failure(DEATH, announced)
    assert isinstance(died, Crashed)
    assert (died.cause, died.rank, died.phase) == ("worker_died", 1, "running the trial")
