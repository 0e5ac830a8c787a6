"""The decisions of the controller, without a study, a cluster or a clock."""

from dataclasses import replace

import pytest

from orchestrator.core.events import GroupStarted, Noted, SweepStarted, TrialStarted
from orchestrator.core.failures import DRIVER_DIED_TWICE, GROUP_OVERDUE
from orchestrator.core.handle import handle, start
from orchestrator.core.inputs import (
    FinalistsChosen,
    GroupsEnded,
    Input,
    InterruptedTrial,
    NodesChanged,
    PlanProposed,
    StopRequested,
    StudyUnavailable,
    Tick,
    TrialFinished,
    TrialOpened,
)
from orchestrator.core.instructions import (
    Abandon,
    Announce,
    ChooseFinalists,
    Dismiss,
    End,
    Instruction,
    Kill,
    Open,
    Propose,
    Release,
    RequestCapacity,
    Run,
    StartGroup,
    Store,
)
from orchestrator.core.notes import FingerprintsDiffer, GroupReplaced
from orchestrator.core.placement import Placement, Shortfall
from orchestrator.core.reasons import (
    BudgetSpent,
    IsBaseline,
    NotWorthIt,
    OtherRanks,
    Remeasures,
    Retry,
    TrialReason,
)
from orchestrator.core.records import learned_noise
from search_spaces.hardware.noise import noise_prior
from search_spaces.plan import Plan
from search_spaces.trial import Cancelled, DriverDied, NodesLost, Outcome, WorkersFailed
from tests.orchestrator.core.driven import (
    ANY_REASON,
    BASELINE,
    LONE,
    PAIRS,
    PLANS,
    SPACE,
    STOPPED,
    Driven,
    Phase,
    budget_of,
    driver,
    kinds,
    nodes,
    phase_of,
    searching,
)
from tests.orchestrator.records import BEGAN, make_records, make_space, make_spec
from tests.outcomes import CPU_FINGERPRINT, make_measured


def test_a_trial_gets_the_noise_that_earlier_ones_tell_of_its_device() -> None:
    """The first trial of a driver that resumes gets the same."""
    driven = searching(spec=budget_of(4))
    driven.report("group-1", 0, make_measured(16.0, stall_seconds=0.5))  # 12 steps of 1 s
    driven.report("group-2", 1, make_measured(8.0))  # 12 steps of 2 s
    instructions = driven.begin(PAIRS[1])
    resumed = Driven.by(driver(spec=budget_of(4), records=driven.state.sweep.records))
    resumed.show(*nodes("a", "b"))

    for log in (instructions, resumed.begin(PAIRS[1])):
        (noise,) = (one.request.noise for one in log if isinstance(one, Run))
        assert noise == replace(noise_prior("cpu"), seconds=36.0, stall_seconds=0.5)
    records = driven.state.sweep.records
    quiet = replace(records[0], outcome=make_measured(16.0, stall_seconds=0.0))
    last = learned_noise([records[0], *[quiet] * 20], CPU_FINGERPRINT)
    assert last == replace(noise_prior("cpu"), seconds=20 * 12.0)
    other = replace(CPU_FINGERPRINT, device_name="NVIDIA H200", device="cuda")
    assert learned_noise(records, other) == noise_prior("cuda")


def test_a_sweep_from_its_start_to_its_end() -> None:
    """Each input, the instructions that follow, and what the sweep does then."""
    now = BEGAN
    steps: list[tuple[Input, list[type], Phase]] = [
        (NodesChanged(nodes=nodes("a", "b"), at=now), [Open], Phase.SEARCHING),
        (Tick(at=now), [], Phase.SEARCHING),  # an answer is awaited
        (
            TrialOpened(number=0, at=now),
            [TrialStarted, RequestCapacity, StartGroup, Run],
            Phase.SEARCHING,
        ),
        (Tick(at=now), [Propose], Phase.SEARCHING),
        (PlanProposed(plan=PAIRS[0], reason=ANY_REASON, at=now), [Open], Phase.SEARCHING),
        (TrialOpened(number=1, at=now), [TrialStarted, StartGroup, Run], Phase.SEARCHING),
        (finished("group-2", 1, 40.0), [GroupStarted, Store], Phase.SEARCHING),
        (Tick(at=now), [], Phase.DRAINING),
        (finished("group-1", 0, 20.0), [Store], Phase.VALIDATING),
        (Tick(at=now), [TrialStarted, RequestCapacity, Noted, Run], Phase.VALIDATING),
        (Tick(at=now), [], Phase.VALIDATING),
        (finished("group-1", 0, 20.0), [], Phase.VALIDATING),  # came twice
        (replace(finished("group-2", 1, 40.0), validation=True), [Store], Phase.VALIDATING),
        (Tick(at=now), [End, Dismiss, Dismiss], Phase.DONE),
        (Tick(at=now), [], Phase.DONE),
        (finished("group-2", 1, 40.0), [], Phase.DONE),
        (NodesChanged(nodes=nodes("c"), at=now), [], Phase.DONE),
        (GroupsEnded(groups=("group-1", "group-2"), at=now), [], Phase.DONE),
    ]
    state, begun = start(driver())
    log: list[Instruction] = list(begun)
    assert kinds(log) == [SweepStarted]
    for given, expected, phase in steps:
        state, instructions = handle(state, given)
        assert (kinds(instructions), phase_of(state)) == (expected, phase), given
        log += instructions

    assert state.groups == {}
    first, second, validation = (one for one in log if isinstance(one, Run))
    assert (first.group, first.request.plan) == ("group-1", BASELINE)
    assert (second.group, second.request.plan) == ("group-2", PAIRS[0])
    assert [run.placement for run in (first, second)] == [
        Placement((("a", 2),)),
        Placement((("b", 2),)),
    ]
    assert (first.device, first.folder, first.deadline_seconds) == ("cpu", "/here", 60.0)
    assert second.addresses == (("b", "b:1"),)
    assert validation.request.validation
    assert validation.request.number == 1  # the faster one
    assert [run.fresh for run in (first, second, validation)] == [False, False, True]
    assert [one.need for one in log if isinstance(one, RequestCapacity)] == [
        Shortfall(nodes=frozenset({"a", "b"})),
        Shortfall(nodes=frozenset({"a"})),  # for a validation alone
    ]
    assert [one.event.note for one in log if isinstance(one, Announce) and kinds([one]) == [Noted]]
    (end,) = (one for one in log if isinstance(one, End))
    assert end.reason == BudgetSpent(limit="trials", amount=2)
    opened = [one for one in log if isinstance(one, Open)]
    assert [one.reason for one in opened] == [IsBaseline(), ANY_REASON]


def finished(group: str, number: int, rate: float) -> TrialFinished:
    return TrialFinished(
        group=group,
        number=number,
        validation=False,
        outcome=make_measured(rate),
        fingerprint=CPU_FINGERPRINT,
        started_at=BEGAN + 1,
        ended_at=BEGAN + 9,
        at=BEGAN + 10,
    )


@pytest.mark.parametrize(
    ("there", "noted"),
    [
        ((("driver", "575.57"), ("power limit W", "700")), ("575.57", "580.65")),
        ((("driver", "580.65"), ("power limit W", "400")), ("400", "700")),
        ((("driver", "580.65"),), None),
        ((), None),  # the record of an earlier version
    ],
)
def test_a_resumed_sweep_says_once_what_has_changed(
    there: tuple[tuple[str, str], ...], noted: tuple[str, str] | None
) -> None:
    here = replace(CPU_FINGERPRINT, environment=(("driver", "580.65"), ("power limit W", "700")))
    earlier = replace(CPU_FINGERPRINT, environment=there)
    records = [
        replace(one, fingerprint=earlier) for one in make_records(SPACE, [make_measured()] * 2)
    ]
    state, _ = start(driver(spec=budget_of(9), records=tuple(records)))
    given: list[Input] = [NodesChanged(nodes=nodes("a", "b"), at=BEGAN)]
    for number, fingerprint in ((2, here), (3, earlier), (4, here)):
        given += [
            Tick(at=BEGAN),
            PlanProposed(plan=PAIRS[number], reason=ANY_REASON, at=BEGAN),
            TrialOpened(number=number, at=BEGAN),
            replace(finished("group-1", number, 40.0), fingerprint=fingerprint),
        ]
    announced = []
    for one in given:
        state, instructions = handle(state, one)
        announced += [i.event for i in instructions if isinstance(i, Announce)]
    notes = [event.note for event in announced if isinstance(event, Noted)]
    differ = [note for note in notes if isinstance(note, FingerprintsDiffer)]

    assert len(state.sweep.records) == 5
    assert sum(isinstance(event, GroupStarted) for event in announced) == (3 if noted else 1)
    assert [(note.trials, [(d.there, d.here) for d in note.differences]) for note in differ] == (
        [(2, [noted]), (1, [noted[::-1]])] if noted else []
    )


def left(reason: TrialReason, *, in_space: bool = True) -> InterruptedTrial:
    return InterruptedTrial(number=4, plan=PAIRS[0], reason=reason, in_space=in_space)


def died(times: int, *, alone: bool = True) -> Retry:
    return Retry(trial=2, cause=DriverDied(times=times, alone=alone))


@pytest.mark.parametrize(
    ("trial", "reopened", "untried", "closed"),
    [
        (left(IsBaseline()), True, PLANS, None),
        (left(IsBaseline(), in_space=False), False, PLANS, None),
        (left(Remeasures(trial=1)), False, PLANS, None),
        (left(died(1)), False, PLANS - 1, DRIVER_DIED_TWICE),
        (left(Retry(trial=2, cause=NodesLost(nodes=("a",)))), True, PLANS, None),
    ],
)
def test_a_trial_that_an_earlier_driver_left_is_closed(
    trial: InterruptedTrial, reopened: bool, untried: int, closed: Outcome | None
) -> None:
    """It runs once more, before all others, unless a driver died in it before, or it is gone."""
    state, instructions = start(driver(interrupted=(trial,)))
    assert kinds(instructions) == [SweepStarted, Abandon]
    (_, abandon) = instructions
    assert isinstance(abandon, Abandon)
    assert abandon.number == 4
    assert (abandon.ended and abandon.ended.record.outcome) == closed
    assert [record.outcome for record in state.sweep.records] == ([closed] if closed else [])
    assert state.sweep.untried_count == untried

    (opening,) = handle(state, NodesChanged(nodes=nodes("a"), at=BEGAN))[1]
    assert isinstance(opening, Open)
    if reopened:
        reason = Retry(trial=4, cause=DriverDied())
        assert opening == Open(plan=PAIRS[0], reason=reason)
    else:
        assert opening == Open(plan=BASELINE, reason=IsBaseline())


def test_idle_groups_in_the_way_of_a_trial_are_released() -> None:
    driven = Driven.by(driver(spec=budget_of(9)))
    driven.show(*nodes("a", "b", slots=1))
    driven.open()  # the baseline takes both nodes
    driven.begin(LONE[0])
    assert driven.state.pending is not None
    instructions = driven.report("group-1", 0)
    assert kinds(instructions) == [GroupStarted, Store, Noted, Run, Propose]
    driven.begin(LONE[1])
    assert {name: group.placement for name, group in driven.state.groups.items()} == {
        "group-1": Placement((("a", 1),)),
        "group-2": Placement((("b", 1),)),
    }

    driven.report("group-1", 1)
    assert not any(isinstance(one, Run) for one in driven.begin(PAIRS[0]))  # a node is busy
    instructions = driven.report("group-2", 2)
    run = next(one for one in instructions if isinstance(one, Run))
    (idle,) = {"group-1", "group-2"} - {run.group}
    assert Release(group=idle) in instructions
    assert instructions.index(Release(group=idle)) < instructions.index(run)
    assert run.fresh
    assert run.placement is not None
    assert run.placement.nodes == {"a", "b"}
    assert driven.state.groups[idle].processes is None
    assert driven.state.sweep.notes[-1].note == GroupReplaced(
        reason=OtherRanks(needed=2, present=1)
    )


def test_a_group_is_overdue_at_one_moment() -> None:
    driven = searching()
    seconds = driven.state.groups["group-1"].overdue_at - driven.now
    driven.tick(seconds - 11)
    driven.report("group-2", 1)
    assert driven.tick() == ()
    instructions = driven.tick(1)

    assert kinds(instructions) == [Kill, Abandon, Open]
    assert instructions[0] == Kill(group="group-1")
    assert instructions[2] == Open(
        plan=BASELINE, reason=Retry(trial=0, cause=WorkersFailed(outcome=GROUP_OVERDUE))
    )
    assert driven.state.groups.keys() == {"group-2"}
    assert driven.report("group-1", 0) == ()
    assert driven.end("group-1") == ()


def test_a_stop_closes_what_runs_and_what_waits() -> None:
    driven = searching(spec=budget_of(9), groups=3)
    driven.begin(PAIRS[1])
    assert driven.state.pending
    instructions = driven.stop()

    assert kinds(instructions) == [Abandon, Abandon, Abandon, End]
    for number, abandon in enumerate(instructions[:3]):
        assert isinstance(abandon, Abandon)
        assert abandon.number == number
        assert abandon.ended is not None
        assert abandon.ended.record.outcome == Cancelled(cause=STOPPED)
    assert instructions[3] == End(reason=STOPPED, at=driven.now)
    assert driven.state.ended
    assert driven.state.sweep.running == ()
    assert driven.state.sweep.untried_count == PLANS  # the next driver may run them
    assert driven.stop() == ()


@pytest.mark.parametrize("awaited", [Propose, Open])
@pytest.mark.parametrize("ends", [StopRequested, StudyUnavailable])
def test_an_answer_that_comes_after_the_end_changes_nothing(
    awaited: type, ends: type[StopRequested | StudyUnavailable]
) -> None:
    driven = searching(spec=budget_of(9))
    driven.report("group-1", 0)
    if awaited is Open:
        driven.propose(PAIRS[1])
    assert isinstance(driven.state.awaited, awaited)
    cause = {"cause": STOPPED} if ends is StopRequested else {}
    driven.give(ends(at=driven.now, **cause))
    after = driven.state
    assert driven.propose(PAIRS[1]) == ()
    assert driven.open() == ()

    assert driven.state == after
    assert after.awaited is None
    assert after.ended


def test_an_unavailable_study_ends_the_sweep_and_takes_what_still_ends() -> None:
    driven = searching(spec=budget_of(9))
    driven.report("group-1", 0)
    instructions = driven.give(StudyUnavailable(at=driven.now))

    assert instructions == (Dismiss(group="group-1"),)  # and no End: it could not be stored
    assert driven.state.ended
    assert driven.give(StudyUnavailable(at=driven.now)) == ()
    instructions = driven.report("group-2", 1)
    assert kinds(instructions) == [Store, Dismiss]
    assert instructions[1] == Dismiss(group="group-2")
    assert driven.stop() == ()


def test_a_declined_proposal_ends_the_search() -> None:
    """Three measurements say what a trial may save; the one that runs is awaited."""
    budget = {"trials": 99, "minutes": 600, "training_hours": 1.0}
    spec = make_spec(budget=budget, space={"micro_batch": [1, 2, 4], "batching": ["padded"]})
    space = make_space(spec)
    records = make_records(space, [make_measured()] * 3)
    driven = Driven.by(driver(spec=spec, records=records))
    assert driven.show(*nodes("a", "b")) == (Propose(),)
    tried = {record.plan for record in records}
    first, second = [plan for plan in space.candidates if plan not in tried][:2]
    driven.begin(first)

    assert driven.propose(second, saving=1e-9, seconds=100.0) == ()
    assert isinstance(driven.state.stop_reason, NotWorthIt)
    assert phase_of(driven.state) is Phase.DRAINING


def test_a_trial_that_is_interrupted_reopens_the_search() -> None:
    """The budget counted on it."""
    driven = searching()
    driven.report("group-1", 0)
    assert phase_of(driven.state) is Phase.DRAINING
    instructions = driven.end("group-2")

    assert kinds(instructions) == [Abandon, Open]
    assert phase_of(driven.state) is Phase.SEARCHING


def test_a_report_of_a_trial_is_not_taken_for_that_of_its_validation() -> None:
    """It comes a second time when the same group validates the trial."""
    driven = Driven.by(driver(spec=budget_of(1), groups=1))
    driven.show(*nodes("a"))
    driven.open()
    driven.report("group-1", 0)
    (validation,) = driven.state.sweep.running
    assert validation.validation

    assert driven.report("group-1", 0) == ()
    assert driven.state.sweep.running == (validation,)
    assert Store in kinds(driven.report("group-1", 0, validation=True))


def test_the_leaders_are_measured_again_between_search_and_validation() -> None:
    """Each input, the instructions that follow, and what the sweep does then."""
    spec = make_spec(
        space={"micro_batch": [1, 2, 4], "data": [2], "batching": ["padded"]},
        budget={"trials": 2, "minutes": 600, "trial_seconds": 60},
        validation={"enabled": True, "repeats": 3},
    )
    driven = Driven.by(driver(spec=spec, groups=1))
    other = next(plan for plan in driven.state.sweep.space.candidates if plan != BASELINE)
    driven.show(*nodes("a"))
    driven.open()
    driven.report("group-1", 0, make_measured(40.0))
    driven.begin(other)
    log = driven.report("group-1", 1, make_measured(42.0))
    assert kinds(log) == [GroupStarted, Store, ChooseFinalists][-len(log) :]
    assert driven.tick() == ()  # an answer is awaited

    def lead(*plans: Plan) -> tuple[Instruction, ...]:
        return driven.give(FinalistsChosen(plans=plans, at=driven.now))

    log = lead(other, BASELINE)
    (opened,) = log
    assert isinstance(opened, Open)
    assert (opened.plan, opened.reason) == (other, Remeasures(trial=1))
    untried = driven.state.sweep.untried_count
    log = driven.open()
    assert phase_of(driven.state) is Phase.REMEASURING
    assert kinds(log) == [TrialStarted, Run]  # on the workers that are there
    assert driven.state.sweep.untried_count == untried

    log = driven.report("group-1", 2, make_measured(30.0))
    assert isinstance(log[-1], ChooseFinalists)  # others may lead by now
    log = lead(BASELINE, other)
    assert isinstance(log[-1], Open)
    assert log[-1].plan == BASELINE
    driven.open()
    driven.report("group-1", 3, make_measured(40.0))
    lead(other, BASELINE)
    driven.open()
    log = driven.report("group-1", 4, make_measured(30.0))  # of the plan that was lucky once
    assert phase_of(driven.state) is Phase.VALIDATING
    (run,) = (one for one in log if isinstance(one, Run))
    assert run.request.validation
    assert run.request.plan == BASELINE
