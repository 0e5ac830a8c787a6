"""The controller: what follows from an input, as a pure function of state and input."""

from __future__ import annotations

from dataclasses import replace

from orchestrator.core.controller_state import ControllerState, Group, Phase, Settings
from orchestrator.core.events import GroupStarted, SweepStarted, TrialStarted
from orchestrator.core.failures import (
    DRIVER_DIED_TWICE,
    GROUP_OVERDUE,
    RUNNER_DIED,
    FailureDecision,
    failure_decision,
)
from orchestrator.core.inputs import (
    DriverStarted,
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
from orchestrator.core.instructions import Abandon, Instruction, Kill, Release
from orchestrator.core.notes import GroupReplaced, Message, PlanBlamed
from orchestrator.core.reasons import Retry, WorkersGone
from orchestrator.core.records import Record, closed_record
from orchestrator.core.schedule import schedule, take_finalists, take_opened, take_proposal
from orchestrator.core.state import begin
from orchestrator.core.step import Step
from search_spaces.trial import Crashed, DriverDied, NodesLost, WorkersFailed

MAX_NODE_LOSSES = 2  # of nodes during trials of one plan; after more the plan itself is blamed

Decision = tuple[ControllerState, tuple[Instruction, ...]]


def start(started: DriverStarted) -> Decision:
    """Returns the first state of a driver, and what it has to do."""
    begun = _sweep_started(started)
    state = ControllerState(
        sweep=begin(begun),
        settings=Settings(
            device=started.device,
            folder=started.folder,
            max_groups=started.max_groups,
            requests={request.accelerator: request for request in started.requests},
        ),
        untried=dict(started.untried),
    )
    step = Step(state, started.at)
    step.announce(begun)
    for trial in started.interrupted:
        _repair(step, trial)
    return step.state, tuple(step.instructions)


def handle(state: ControllerState, given: Input) -> Decision:
    """Returns the state after an input, and the instructions that follow, in order.

    The driver gives all inputs after `start` one by one, answers to instructions included. An input
    that is not expected in this state, such as a late report of a group that counts as dead,
    changes nothing. Where a result has to be written, nothing is started in the same step: the
    write may fail, and then nothing may start any more.
    """
    step = Step(state, given.at)
    declined: frozenset[str] | None = None
    match given:
        case NodesChanged(nodes=nodes):
            step.change(nodes=nodes)
        case Tick():
            _kill_overdue(step)
        case PlanProposed():
            declined = take_proposal(step, given)
        case TrialOpened():
            take_opened(step, given)
        case FinalistsChosen():
            take_finalists(step, given)
        case TrialFinished():
            _finish_trial(step, given)
        case GroupsEnded():
            _end_groups(step, given)
        case StopRequested():
            _stop(step, given)
        case StudyUnavailable():
            step.change(ended=True, awaited=None)
    schedule(step, declined)
    return step.state, tuple(step.instructions)


def _sweep_started(started: DriverStarted) -> SweepStarted:
    return SweepStarted(
        study=started.study,
        spec=started.spec,
        space=started.space,
        records=started.records,
        memory_limit_bytes=started.memory_limit_bytes,
        at=started.at,
        validations=started.validations,
        groups=started.max_groups,
    )


def _repair(step: Step, trial: InterruptedTrial) -> None:
    """Closes a trial that an earlier driver left running, and schedules its retry.

    A retry that was interrupted is blamed on its plan. A plan outside of today's space is dropped.
    """
    if trial.retry_of is None:
        step.instruct(Abandon(number=trial.number))
        if trial.in_space and not trial.is_repeat:
            again = (trial.plan, Retry(trial=trial.number, cause=DriverDied()))
            step.change(retries=(*step.state.retries, again))
        return
    reason = Retry(trial=trial.retry_of, cause=DriverDied())
    record = closed_record(trial.number, trial.plan, DRIVER_DIED_TWICE, reason, at=step.now)
    if trial.in_space:
        step.count_untried(trial.plan.accelerator, -1)
    step.abandon(record)


def _finish_trial(step: Step, report: TrialFinished) -> None:
    group = step.state.groups.get(report.group)
    if group is None or group.trial != report.number:
        return  # it came twice, or after the group was given up
    trial = step.state.running(report.number)
    if trial is None:  # the sweep was stopped meanwhile
        step.set_group(report.group, Group())
        return
    if trial.validation != report.validation:
        return  # it came twice: the group validates that trial by now
    decision = failure_decision(report.outcome, second=_is_second(trial))
    ended = report.workers_ended or bool(report.lost_nodes)
    placement = group.placement
    free = Group(processes=None if ended or decision.replace else group.processes)
    step.set_group(report.group, free)
    if decision.replace and not report.workers_ended:
        step.instruct(Release(group=report.group))
    _announce_workers(step, trial, report)
    if report.lost_nodes:
        blamed = _lose_nodes(step, trial, report)
    else:
        blamed = None
        if decision.retry and placement:
            avoided = {**step.state.avoided, trial.plan.key: placement.nodes}
            step.change(avoided=avoided)
        _end_trial(step, trial, report, decision)
    reason = decision.replace or (WorkersGone() if report.workers_ended else None)
    if reason:
        step.note(GroupReplaced(reason=reason))
    step.note(*(Message(text=fault) for fault in report.faults))
    if blamed:
        step.note(blamed)


def _is_second(trial: TrialStarted) -> bool:
    return trial.validation or trial.retry_of is not None


def _announce_workers(step: Step, trial: TrialStarted, report: TrialFinished) -> None:
    fingerprint = report.fingerprint
    if fingerprint is not None and fingerprint != step.state.sweep.fingerprint:
        step.announce(
            GroupStarted(world_size=trial.plan.world_size, fingerprint=fingerprint, at=step.now)
        )


def _end_trial(
    step: Step, trial: TrialStarted, report: TrialFinished, decision: FailureDecision
) -> None:
    """Retries a trial that crashed with its processes, or stores its result."""
    if decision.retry:
        assert isinstance(report.outcome, Crashed)
        step.interrupt(trial, WorkersFailed(outcome=report.outcome))
        return
    queued = max(report.started_at - trial.at, 0.0)  # clocks of two hosts may differ
    step.store(
        Record(
            number=trial.number,
            plan=trial.plan,
            outcome=report.outcome,
            reason=trial.reason,
            started_at=report.started_at,
            ended_at=report.ended_at,
            fingerprint=report.fingerprint,
            forecast=trial.forecast or report.forecast,
            validation=trial.validation,
        ),
        waited_seconds=queued + report.workers_seconds,
    )


def _lose_nodes(step: Step, trial: TrialStarted, report: TrialFinished) -> PlanBlamed | None:
    """Runs a trial again whose nodes were lost; after too many losses, its plan is blamed."""
    state, key = step.state, trial.plan.key
    losses = state.node_losses.get(key, 0) + 1
    step.change(
        node_losses={**state.node_losses, key: losses},
        lost_at={**state.lost_at, **dict.fromkeys(report.lost_nodes, step.now)},
    )
    loss = NodesLost(nodes=tuple(state.names.get(node, node) for node in report.lost_nodes))
    if losses <= MAX_NODE_LOSSES:
        step.interrupt(trial, loss)
        return None
    _end_trial(step, trial, report, failure_decision(report.outcome, second=_is_second(trial)))
    return PlanBlamed(trial=trial.number, loss=loss)


def _end_groups(step: Step, ended: GroupsEnded) -> None:
    for name in ended.groups:
        group = step.state.groups.get(name)
        step.set_group(name, None)
        if group is not None and group.trial is not None:
            _lose_trial(step, group.trial, RUNNER_DIED)
    step.note(*(Message(text=fault) for fault in ended.faults))


def _lose_trial(step: Step, number: int, outcome: Crashed) -> None:
    """Retries a trial whose group died without a report, or stores that it died twice."""
    trial = step.state.running(number)
    if trial is None:
        return
    if failure_decision(outcome, second=_is_second(trial)).retry:
        step.interrupt(trial, WorkersFailed(outcome=outcome))
        return
    record = closed_record(number, trial.plan, outcome, trial.reason, at=step.now)
    step.store(replace(record, forecast=trial.forecast, validation=trial.validation))


def _kill_overdue(step: Step) -> None:
    """Gives up groups whose report is overdue: they count as dead from now on."""
    for name, group in tuple(step.state.groups.items()):
        if group.trial is not None and step.now >= group.overdue_at:
            step.set_group(name, None)
            step.instruct(Kill(group=name))
            _lose_trial(step, group.trial, GROUP_OVERDUE)


def _stop(step: Step, stop: StopRequested) -> None:
    """Closes all trials, so that the next driver retries them, and ends the sweep."""
    if step.state.phase is Phase.DONE:
        return
    for trial in step.state.sweep.running:
        step.close(trial, stop.cause)
    step.change(pending={}, awaited=None)
    step.end(stop.cause)
