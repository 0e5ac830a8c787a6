"""Worker groups: reports that are not expected, overdue ones, workers to replace, and the end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from orchestrator.core.controller_state import Phase
from orchestrator.core.events import Noted, TrialEnded, TrialStarted
from orchestrator.core.failures import GROUP_OVERDUE, RUNNER_DIED
from orchestrator.core.inputs import GroupsEnded
from orchestrator.core.instructions import Run
from orchestrator.core.notes import GroupReplaced, Message
from orchestrator.core.placement import Node
from orchestrator.core.reasons import (
    DeadlineMissed,
    FreshWorkers,
    MemoryNotReleased,
    OtherEnvironment,
    OtherNodes,
    OtherRanks,
    ReplacementReason,
    Retry,
    WorkersCrashed,
    WorkersGone,
)
from orchestrator.core.schedule import REPORT_SECONDS
from search_spaces.trial import (
    Cancelled,
    Crashed,
    NodesLost,
    Outcome,
    QueuesLost,
    TimedOut,
    WorkersFailed,
)
from tests.orchestrator.controller.sweeps import DIED, PlayedCluster, Sweep, make_nodes
from tests.orchestrator.records import make_spec
from tests.outcomes import make_costs, make_measured, make_oom

Make = Callable[..., Sweep]
GIB = 1 << 30
DEVICE_ERROR = Crashed(cause="device_error", rank=0, phase="forward", detail="RuntimeError: so")


@pytest.fixture
def sweep(tmp_path: Path) -> Make:
    """Returns a function that makes drivers on nodes of these names."""

    def make(*names: str, groups: int = 1, trials: int = 9, **sections: object) -> Sweep:
        spec = make_spec(
            **{
                "study": {"folder": str(tmp_path), "sampler": "random"},
                "budget": {"trials": trials, "minutes": 600, "trial_seconds": 60},
                **sections,
            }
        )
        return Sweep(spec, PlayedCluster(make_nodes(*names or "a")), groups)

    return make


def reasons(sweep: Sweep) -> list[ReplacementReason]:
    """Returns why workers were replaced so far."""
    notes = [event.note for event in sweep.events(Noted)]
    return [note.reason for note in notes if isinstance(note, GroupReplaced)]


# ---------------------------------------------------------------- reports


def report_again(ours: Sweep, run: Run) -> None:
    ours.report(run, make_measured())
    ours.report(run, make_oom())


def report_after_the_end(ours: Sweep, run: Run) -> None:
    ours.lose(run)
    ours.report(run, make_oom())


def report_after_the_kill(ours: Sweep, run: Run) -> None:
    ours.clock.now += 7200
    ours.controller.tick()
    assert ours.cluster.killed == [run.group]
    ours.report(run, make_oom())


def report_after_the_stop(ours: Sweep, run: Run) -> None:
    ours.stop()
    ours.report(run, make_oom())


def report_of_an_unknown_group(ours: Sweep, run: Run) -> None:
    ours.controller.tick()
    ours.report(run, make_oom(), group="group-7")


def report_of_an_unknown_trial(ours: Sweep, run: Run) -> None:
    ours.controller.tick()
    ours.report(run, make_oom(), number=7)


@pytest.mark.parametrize(
    "act",
    [
        report_again,
        report_after_the_end,
        report_after_the_kill,
        report_after_the_stop,
        report_of_an_unknown_group,
        report_of_an_unknown_trial,
    ],
)
@pytest.mark.parametrize("trials", [1, 9])
def test_a_report_that_is_not_expected_changes_nothing(
    sweep: Make, act: Callable[[Sweep, Run], None], trials: int
) -> None:
    ours = sweep(trials=trials)
    run = ours.ask()
    states = []
    receive = ours.controller.receive

    def watched(given: object) -> None:
        states.append((ours.controller.state, ours.state, len(ours.decisions)))
        receive(given)

    ours.controller.receive = watched
    act(ours, run)

    before, event_state, decisions = states[-1]
    after = ours.controller.state
    if act is report_after_the_stop:  # the group is free, and leaves
        assert ours.cluster.dismissed == [run.group]
        after, decisions = replace(after, groups=before.groups), len(ours.decisions)
    assert after == before
    assert ours.state == event_state
    assert len(ours.decisions) == decisions
    assert make_oom() not in ours.outcomes


def test_a_report_of_another_trial_of_the_group_changes_nothing(sweep: Make) -> None:
    """A group that reports a trial that runs elsewhere is not that trial's."""
    ours = sweep("a", "b", groups=2)
    first, second = ours.ask(), ours.ask()
    before = ours.controller.state
    ours.report(first, make_oom(), number=second.request.number)

    assert ours.controller.state == before
    assert ours.outcomes == []


# ---------------------------------------------------------------- overdue groups


def overdue_seconds(ours: Sweep, run: Run) -> float:
    return 60 * ours.spec.cluster.start_minutes + run.deadline_seconds + REPORT_SECONDS


def test_a_group_that_is_overdue_is_killed_and_its_trial_is_retried_once(sweep: Make) -> None:
    ours = sweep(trials=3)
    first = ours.ask()
    ours.clock.now += overdue_seconds(ours, first) - 1
    assert ours.next() is None
    assert ours.cluster.killed == []
    ours.clock.now += 1
    again = ours.ask()

    assert ours.cluster.killed == [first.group]
    assert again.group != first.group
    assert again.request.plan == first.request.plan
    assert ours.events(TrialStarted)[-1].reason == Retry(
        trial=0, cause=WorkersFailed(outcome=GROUP_OVERDUE)
    )
    ours.lose(first, "a process still runs")  # the killed group has ended
    assert ours.notes == ["a process still runs"]
    assert ours.state.running[0].number == again.request.number

    ours.clock.now += overdue_seconds(ours, again)
    ours.controller.tick()
    assert ours.cluster.killed == [first.group, again.group]
    assert ours.outcomes == [
        Cancelled(cause=WorkersFailed(outcome=GROUP_OVERDUE)),
        GROUP_OVERDUE,
    ]
    assert again.request.plan not in ours.run()


def test_only_the_group_that_is_overdue_is_killed(sweep: Make) -> None:
    ours = sweep("a", "b", groups=2)
    first, second = ours.ask(), ours.ask()
    ours.clock.now += overdue_seconds(ours, first) - 100
    ours.report(second, make_measured())
    beside = ours.ask()
    assert beside.group == second.group
    ours.clock.now += 100
    ours.controller.tick()

    assert ours.cluster.killed == [first.group]
    assert {trial.number for trial in ours.state.running} == {2, 3}
    ours.clock.now += 10_000
    ours.report(beside, make_measured())  # late, but nobody looked in the meantime
    assert ours.outcomes[-1] == make_measured()
    (suspect,) = ours.controller.state.suspects  # the retry, until a measured plan has run again
    assert suspect.record.outcome == GROUP_OVERDUE


# ---------------------------------------------------------------- workers to replace


@pytest.mark.parametrize(
    ("outcome", "ended", "released", "reason"),
    [
        (make_measured(), False, False, None),
        (make_measured(), True, False, WorkersGone()),
        (make_oom(), False, False, None),
        (
            make_oom(costs=make_costs(residual_bytes=GIB)),
            False,
            True,
            MemoryNotReleased(residual_bytes=GIB),
        ),
        (DEVICE_ERROR, False, True, WorkersCrashed(cause="device_error")),
        (DEVICE_ERROR, True, False, WorkersCrashed(cause="device_error")),
        (DIED, True, False, WorkersCrashed(cause="worker_died")),
        (TimedOut(deadline_seconds=60.0, detail="so"), True, False, DeadlineMissed()),
    ],
)
def test_workers_are_released_where_they_cannot_go_on(
    sweep: Make, outcome: Outcome, ended: bool, released: bool, reason: ReplacementReason | None
) -> None:
    """The group stays, and the next trial starts workers of its own."""
    ours = sweep()
    run = ours.ask()
    ours.report(run, outcome, workers_ended=ended, faults=("so",))

    assert ours.cluster.released == ([run.group] if released else [])
    notes = [noted.note for noted in ours.events(Noted)]
    replaced = [GroupReplaced(reason=reason)] if reason else []
    assert notes == [*replaced, Message(text="so")]
    again = ours.ask()
    assert again.group == run.group
    assert not again.fresh
    assert reasons(ours) == ([reason] if reason else [])  # nothing is replaced twice


@pytest.mark.parametrize(
    ("space", "kind"),
    [({"allocator": ["default", "mmap"]}, OtherEnvironment), ({"data": [1, 2]}, OtherRanks)],
)
def test_workers_of_another_kind_are_replaced(
    sweep: Make, space: dict[str, object], kind: type[ReplacementReason]
) -> None:
    ours = sweep(space=space)
    runs = []
    while (run := ours.next()) is not None:
        runs.append(run)
        ours.report(run, make_measured())

    fixed = [(run.request.plan.world_size, run.request.plan.allocator) for run in runs]
    changed = [before != after for before, after in pairwise(fixed)]
    assert {*changed} == {True, False}
    assert [run.fresh for run in runs] == [False, *changed]
    assert [type(reason) for reason in reasons(ours)] == [kind] * sum(changed)


def test_workers_on_other_nodes_are_replaced(sweep: Make) -> None:
    ours = sweep("a")
    first = ours.ask()
    ours.cluster.there = make_nodes("b")
    ours.report(first, make_measured())
    second = ours.ask()
    ours.report(second, make_measured())
    third = ours.ask()

    assert [run.placement and run.placement.nodes for run in (first, second)] == [{"a"}, {"b"}]
    assert [run.fresh for run in (first, second, third)] == [False, True, False]
    assert reasons(ours) == [OtherNodes()]


def test_a_validation_has_fresh_workers(sweep: Make) -> None:
    ours = sweep(trials=1, validation={"enabled": True, "repeats": 0})
    ours.report(ours.ask(), make_measured())
    validation = ours.ask()

    assert validation.request.validation
    assert validation.fresh
    assert reasons(ours) == [FreshWorkers()]


# ---------------------------------------------------------------- the end of groups


@pytest.mark.parametrize("validated", [False, True])
def test_all_groups_are_dismissed_at_the_end(sweep: Make, validated: bool) -> None:
    ours = sweep("a", "b", "c", groups=3, trials=3, validation={"enabled": validated, "repeats": 0})
    for run in [ours.ask() for _ in range(3)]:
        assert ours.cluster.dismissed == []
        ours.report(run, make_measured())
    if validated:
        assert ours.phase is Phase.VALIDATING
        assert ours.cluster.dismissed == []
        ours.report(ours.ask(), make_measured())

    assert ours.phase is Phase.DONE
    assert len(ours.cluster.started) == 3
    assert sorted(ours.cluster.dismissed) == ours.cluster.started
    ours.controller.tick()
    assert len(ours.cluster.dismissed) == 3


def test_after_a_stop_busy_groups_are_dismissed_once_they_are_free(sweep: Make) -> None:
    ours = sweep("a", "b", groups=2)
    first, second = ours.ask(), ours.ask()
    ours.stop()
    assert ours.phase is Phase.DONE
    assert ours.cluster.dismissed == []

    ours.report(second, make_measured())
    assert ours.cluster.dismissed == [second.group]
    ours.report(first, make_measured())
    assert ours.cluster.dismissed == [second.group, first.group]
    assert make_measured() not in ours.outcomes


@pytest.mark.parametrize("turned", [False, True])
def test_no_trial_starts_on_a_group_that_ended_with_others(sweep: Make, turned: bool) -> None:
    """One group is idle when the actor is lost that hands trials to all of them."""
    ours = sweep("a", "b", groups=2, trials=2)
    idle, busy = ours.ask(), ours.ask()
    ours.report(idle, make_measured())
    assert ours.next() is None
    names = (idle.group, busy.group)
    names_in_turn = names[::-1] if turned else names
    ours.controller.receive(GroupsEnded(groups=names_in_turn, queues_lost=True, at=0.0))
    again = ours.ask()

    assert again.group not in names
    assert again.request.plan == busy.request.plan
    assert ours.outcomes == [
        make_measured(),
        Cancelled(cause=QueuesLost()),
    ]
    assert ours.cluster.started == [*names, again.group]
    ours.report(again, make_measured())
    assert ours.phase is Phase.DONE
    assert ours.cluster.dismissed == [again.group]


def test_no_plan_is_blamed_for_lost_queues(sweep: Make) -> None:
    """They are lost twice during trials of a plan, whose group then dies once."""
    ours = sweep("a", trials=1)
    for _ in range(2):
        lost = ours.ask()
        ours.controller.receive(GroupsEnded(groups=(lost.group,), queues_lost=True, at=0.0))
    dying = ours.ask()
    ours.controller.receive(GroupsEnded(groups=(dying.group,), at=0.0))
    again = ours.ask()
    ours.report(again, make_measured())

    assert {lost.request.plan, dying.request.plan} == {again.request.plan}
    assert ours.outcomes == [
        *[Cancelled(cause=QueuesLost())] * 2,
        Cancelled(cause=WorkersFailed(outcome=RUNNER_DIED)),
        make_measured(),
    ]


def test_all_trials_of_groups_that_ended_together_are_retried(sweep: Make) -> None:
    ours = sweep("a", "b", groups=2)
    runs = [ours.ask(), ours.ask()]
    names = tuple(run.group for run in runs)
    ours.controller.receive(GroupsEnded(groups=names, faults=("so",), at=0.0))
    again = [ours.ask(), ours.ask()]

    assert [run.request.plan for run in again] == [run.request.plan for run in runs]
    assert not {run.group for run in again} & {*names}
    assert ours.notes == ["so"]
    assert [type(event.record.outcome) for event in ours.events(TrialEnded)] == [Cancelled] * 2


def test_no_trial_starts_on_a_group_that_ended_when_nodes_came(sweep: Make) -> None:
    """The driver learns of both at once."""
    ours = sweep("a")
    first = ours.ask()
    ours.cluster.there = []
    ours.report(first, DIED, "a")
    assert ours.next() is None  # the retry waits for room, and the group is idle
    ours.cluster.there = [Node(id="b", slots=2)]
    ours.lose(first)
    again = ours.ask()

    assert again.group != first.group
    assert again.placement is not None
    assert again.placement.nodes == {"b"}
    assert ours.outcomes == [Cancelled(cause=NodesLost(nodes=("a",)))]


def test_a_group_that_ended_makes_room_for_another(sweep: Make) -> None:
    """No more groups start than were asked for, until one has ended."""
    ours = sweep("a", "b", "c", groups=2)
    first, _ = ours.ask(), ours.ask()
    assert ours.next() is None
    assert len(ours.cluster.started) == 2
    ours.lose(first)

    assert ours.ask().group == ours.cluster.started[2]
    assert ours.next() is None
