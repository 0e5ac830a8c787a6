"""A machine that fails is told from a plan that fails, and no plan pays for it."""

from dataclasses import replace
from typing import Any

import pytest

from orchestrator.core.blame import MAX_MACHINE_FAILURES
from orchestrator.core.failures import CONTACT_LOST, DRIVER_DIED_TWICE
from orchestrator.core.handle import start
from orchestrator.core.inputs import InterruptedTrial
from orchestrator.core.instructions import Abandon, Dismiss, End, Open, Run, Store
from orchestrator.core.reasons import (
    ChecksMachine,
    IsBaseline,
    MachineFailed,
    MachineReason,
    Retry,
)
from search_spaces.trial import Cancelled, Crashed, CrashKind, DriverDied, Outcome, WorkersFailed
from tests.orchestrator.core.driven import (
    BASELINE,
    PAIRS,
    PLANS,
    Driven,
    budget_of,
    driver,
    kinds,
    nodes,
)
from tests.outcomes import make_measured

BUDGET = budget_of(9)


def crash(cause: CrashKind) -> Crashed:
    return Crashed(cause=cause, rank=0, phase="starting", detail=f"so: {cause}")


DIED, NOT_STARTED, FULL = crash("worker_died"), crash("start_failed"), crash("disk_full")


def one_group(**changes: Any) -> Driven:
    """Returns a controller of one group, on which the baseline runs."""
    driven = Driven.by(driver(spec=BUDGET, groups=1, **changes))
    driven.show(*nodes("a", "b"))
    driven.open()
    return driven


def fail(driven: Driven, outcome: Outcome) -> tuple[Any, ...]:
    """Ends the trial that runs, and lets the pause after a failure pass."""
    (group,) = driven.state.groups.values()
    assert group.trial is not None
    gone = isinstance(outcome, Crashed) and outcome.cause != "disk_full"
    instructions = driven.report("group-1", group.trial, outcome, workers_ended=gone)
    return (*instructions, *driven.tick(60.0))


def nodes_of(driven: Driven) -> frozenset[str]:
    """Returns the nodes of the only group, which has workers."""
    (group,) = driven.state.groups.values()
    assert group.placement is not None
    return group.placement.nodes


def measured_then_failed(*outcomes: Outcome) -> tuple[Driven, tuple[Any, ...]]:
    """Returns a controller whose baseline was measured, then a plan's trials ended like this."""
    driven = one_group()
    driven.report("group-1", 0)
    driven.begin(PAIRS[0])
    instructions: tuple[Any, ...] = ()
    for outcome in outcomes:
        instructions = fail(driven, outcome)
        driven.open()
    return driven, instructions


def outcomes(driven: Driven) -> list[Outcome]:
    kept = [record.outcome for record in driven.state.sweep.records]
    return [outcome for outcome in kept if not isinstance(outcome, Cancelled)]


@pytest.mark.parametrize("cause", ["start_failed", "disk_full"])
def test_a_machine_on_which_nothing_starts_ends_the_sweep_and_blames_no_plan(
    cause: CrashKind,
) -> None:
    driven = one_group()
    for count in range(MAX_MACHINE_FAILURES):
        assert not driven.state.ended
        instructions = fail(driven, crash(cause))
        if count < MAX_MACHINE_FAILURES - 1:
            assert isinstance(instructions[-1], Open)
            driven.open()

    (end,) = (one for one in instructions if isinstance(one, End))
    assert end.reason == MachineFailed(cause=cause, error=f"so: {cause}")
    assert isinstance(end.reason, MachineReason)
    assert driven.state.ended
    assert outcomes(driven) == []
    assert driven.state.sweep.untried_count == PLANS
    assert not any(isinstance(one, Store) for one in instructions)
    assert isinstance(instructions[-1], Dismiss)


def test_groups_that_lose_contact_blame_no_plan() -> None:
    driven = one_group()
    for _ in range(MAX_MACHINE_FAILURES - 1):
        (group,) = driven.state.groups
        assert kinds(driven.end(group, lost_contact=True)) == [Abandon]
        driven.tick(60.0)
        driven.open()
    (group,) = driven.state.groups
    instructions = (*driven.end(group, lost_contact=True), *driven.tick(60.0))

    (end,) = (one for one in instructions if isinstance(one, End))
    assert end.reason == MachineFailed(cause="start_failed", error=CONTACT_LOST.detail)
    assert outcomes(driven) == []


def test_nothing_starts_for_a_while_after_a_failed_start() -> None:
    driven = one_group()
    driven.report("group-1", 0, NOT_STARTED, workers_ended=True)

    assert driven.tick(1.0) == ()
    assert kinds(driven.tick(60.0)) == [Open]


@pytest.mark.parametrize("death", ["of a rank", "of the runner", "overdue"])
def test_a_retry_runs_on_other_nodes(death: str) -> None:
    driven = one_group()
    before = nodes_of(driven)
    if death == "of a rank":
        driven.report("group-1", 0, DIED, workers_ended=True)
    elif death == "of the runner":
        driven.end("group-1")
    else:
        driven.tick(driven.state.groups["group-1"].overdue_at - driven.now)
    driven.open()

    assert [trial.plan for trial in driven.state.sweep.running] == [BASELINE]
    assert not nodes_of(driven) & before


def test_workers_that_do_not_start_on_one_node_after_the_other_leave_the_last_one() -> None:
    driven = one_group()
    for _ in range(MAX_MACHINE_FAILURES - 1):
        before = nodes_of(driven)
        fail(driven, NOT_STARTED)
        driven.open()

        assert not nodes_of(driven) & before


@pytest.mark.parametrize("failure", [DIED, NOT_STARTED, FULL, crash("device_error")])
def test_a_plan_that_failed_twice_is_blamed_once_a_measured_plan_runs(failure: Crashed) -> None:
    driven, _ = measured_then_failed(failure, failure)
    (suspect,) = driven.state.suspects
    assert suspect.record.plan == PAIRS[0]
    (check,) = (trial for trial in driven.state.sweep.running if trial.is_repeat)
    assert check.plan == BASELINE
    assert check.reason == ChecksMachine(trial=0, suspect=suspect.record.number)
    assert len(outcomes(driven)) == 1  # it does not count as failed yet

    instructions = fail(driven, make_measured())
    stored = [one.ended.record for one in instructions if isinstance(one, Store)]
    assert [record.plan for record in stored] == [BASELINE, PAIRS[0]]
    assert stored[1].outcome == failure
    assert driven.state.suspects == ()
    assert driven.state.machine_failures == 0
    assert not driven.state.ended


def test_a_group_that_does_not_start_after_a_driver_died_fails_for_the_first_time() -> None:
    measured = measured_then_failed()[0].state.sweep.records
    driven = one_group(records=measured, interrupted=(left(0, None),))
    (trial,) = driven.state.sweep.running
    assert trial.plan == PAIRS[0]
    assert isinstance(trial.reason, Retry)

    assert isinstance(fail(driven, NOT_STARTED)[-1], Open)
    driven.open()
    assert driven.state.suspects == ()
    fail(driven, NOT_STARTED)
    assert [suspect.record.plan for suspect in driven.state.suspects] == [PAIRS[0]]


@pytest.mark.parametrize("failure", [DIED, NOT_STARTED, FULL])
def test_a_measured_plan_that_fails_as_well_shows_that_it_is_the_machine(failure: Crashed) -> None:
    driven, _ = measured_then_failed(DIED, failure)
    instructions = fail(driven, failure)

    (end,) = (one for one in instructions if isinstance(one, End))
    assert end.reason == MachineFailed(cause=failure.cause, error=failure.detail)
    assert outcomes(driven) == [make_measured()]
    assert driven.state.sweep.untried_count == PLANS - 1  # the plan may run again
    abandoned = [one.ended.record for one in instructions if isinstance(one, Abandon) and one.ended]
    assert {record.plan for record in abandoned} == {BASELINE, PAIRS[0]}
    assert {record.outcome for record in abandoned} == {
        Cancelled(cause=WorkersFailed(outcome=failure))
    }
    assert driven.state.sweep.running == ()


def test_a_stop_closes_what_is_suspected() -> None:
    driven, _ = measured_then_failed(DIED, DIED)
    instructions = driven.stop()

    assert kinds(instructions)[:2] == [Abandon, Abandon]
    assert driven.state.suspects == ()
    assert outcomes(driven) == [make_measured()]


def resumed(*interrupted: InterruptedTrial) -> Driven:
    """Returns a controller that found these trials, after an earlier one measured the baseline."""
    measured = measured_then_failed()[0].state.sweep.records
    driven = Driven.by(driver(spec=BUDGET, groups=1, records=measured, interrupted=interrupted))
    driven.show(*nodes("a", "b"))
    driven.opened = 4
    driven.open()
    return driven


def left(number: int, death: DriverDied | None) -> InterruptedTrial:
    reason = IsBaseline() if death is None else Retry(trial=0, cause=death)
    return InterruptedTrial(number=number, plan=PAIRS[number], reason=reason)


def retries_of(*trials: InterruptedTrial) -> tuple[list[DriverDied], list[Outcome]]:
    state, _ = start(driver(spec=BUDGET, interrupted=trials))
    causes = [reason.cause for _, reason in state.retries]
    assert all(isinstance(cause, DriverDied) for cause in causes)
    return causes, [record.outcome for record in state.sweep.records]  # type: ignore[return-value]


def test_drivers_that_died_with_several_trials_blame_none_of_them() -> None:
    together = DriverDied(times=1, alone=False)
    assert retries_of(left(0, None), left(1, None)) == ([together] * 2, [])

    again = DriverDied(times=2, alone=False)
    assert retries_of(left(0, together), left(1, together)) == ([again] * 2, [])
    assert retries_of(left(0, together)) == ([DriverDied(times=2, alone=True)], [])
    causes, blamed = retries_of(left(0, DriverDied(times=2, alone=True)))
    assert causes == []
    assert [outcome.kind for outcome in blamed] == ["crashed"]


@pytest.mark.parametrize("works", [True, False])
def test_n10_a_plan_that_two_drivers_died_with_is_blamed_only_after_a_check(works: bool) -> None:
    driven = resumed(left(1, DriverDied(times=1, alone=True)))
    (check,) = (trial for trial in driven.state.sweep.running if trial.is_repeat)
    assert check.reason == ChecksMachine(trial=0, suspect=1)
    assert len(outcomes(driven)) == 1  # it does not count as failed yet

    if works:
        fail(driven, make_measured())
        assert [record.plan for record in driven.state.sweep.records] == [
            BASELINE,
            BASELINE,
            PAIRS[1],
        ]
        assert outcomes(driven)[-1] == DRIVER_DIED_TWICE
        return
    fail(driven, DIED)
    assert driven.state.ended
    assert len(outcomes(driven)) == 1
    assert driven.state.sweep.untried_count == PLANS - 1  # all but the baseline


def test_n10_a_driver_that_dies_in_the_check_lets_the_plan_run_again() -> None:
    check = replace(left(2, None), plan=BASELINE, reason=ChecksMachine(trial=0, suspect=1))
    twice = left(1, DriverDied(times=1, alone=True))
    driven = resumed(twice, check)

    assert not driven.state.suspects
    (again,) = driven.state.sweep.running
    assert again.reason == Retry(trial=1, cause=DriverDied(times=2, alone=False))


def test_what_two_drivers_died_with_runs_alone() -> None:
    """A third death then tells which plan it was."""
    trials = [left(number, DriverDied(times=1, alone=False)) for number in (0, 1)]
    driven = Driven.by(driver(spec=BUDGET, interrupted=tuple(trials)))
    driven.show(*nodes("a", "b"))
    driven.opened = 4
    instructions = driven.open()
    assert kinds(instructions)[-1] is Run
    assert kinds(driven.tick(1.0)) == []  # though a node and a group are free
    assert kinds(driven.report("group-1", 4))[-1] is Open
