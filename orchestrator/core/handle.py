"""The controller: what follows from an input, as a pure function of state and input."""

from dataclasses import replace

from orchestrator.core import inputs
from orchestrator.core.blame import conclude_trial, last_measured
from orchestrator.core.controller_state import ControllerState, Group
from orchestrator.core.events import GroupStarted, TrialEnded, TrialStarted
from orchestrator.core.failures import (
    CONTACT_LOST,
    DRIVER_DIED_TWICE,
    GROUP_OVERDUE,
    RUNNER_DIED,
    FailureDecision,
    failure_decision,
    is_loss_of_processes,
    is_machine_failure,
)
from orchestrator.core.fingerprints import differing, is_other_group
from orchestrator.core.instructions import Abandon, Instruction, Kill, Release
from orchestrator.core.notes import FingerprintsDiffer, GroupReplaced, Message, PlanBlamed
from orchestrator.core.reasons import Retry, WorkersGone, measures_again
from orchestrator.core.records import Record, closed_record
from orchestrator.core.schedule import schedule, take_finalists, take_opened, take_proposal
from orchestrator.core.state import begin
from orchestrator.core.step import Step
from search_spaces.trial import (
    Crashed,
    DriverDied,
    NodesLost,
    NoRoom,
    Outcome,
    Stopped,
    WorkersFailed,
)

MAX_NODE_LOSSES = 2  # of nodes during trials of one plan; after more the plan itself is blamed

Decision = tuple[ControllerState, tuple[Instruction, ...]]


def start(started: inputs.DriverStarted) -> Decision:
    """Returns the first state of a driver, and what it has to do."""
    step = Step(ControllerState(sweep=begin(started.sweep), driver=started), started.at)
    step.announce(started.sweep)
    step.note(*started.notes)
    for trial in started.interrupted:
        _retry_interrupted(step, trial, alone=len(started.interrupted) == 1)
    return step.state, tuple(step.instructions)


def handle(state: ControllerState, given: inputs.Input) -> Decision:
    """Returns the state after an input, and the instructions that follow, in order.

    The driver gives all inputs after `start` one by one, answers to instructions included. An input
    that is not expected in this state, such as a late report of a group that counts as dead,
    changes nothing. What a group reports starts nothing in the same step: its result may not be
    written, and nodes may have gone since they were last listed. The driver lets time pass next.
    """
    step = Step(state, given.at)
    _take(step, given)
    if not isinstance(
        given, inputs.TrialFinished | inputs.GroupsEnded | inputs.Notice | inputs.EndWritten
    ):
        schedule(step)
    return step.state, tuple(step.instructions)


def _take(step: Step, given: inputs.Input) -> None:
    match given:
        case inputs.NodesChanged(nodes=nodes):
            step.state = replace(step.state, nodes=nodes)
        case inputs.Tick():
            _kill_overdue(step)
        case inputs.TrialFinished():
            _finish_trial(step, given)
        case inputs.GroupsEnded():
            _end_groups(step, given)
        case inputs.StopRequested():
            _stop(step, given)
        case inputs.Notice(notes=notes):
            step.note(*notes)
        case _:
            _take_answer(step, given)


def _take_answer(step: Step, given: inputs.Answer) -> None:
    match given:
        case inputs.PlanProposed():
            take_proposal(step, given)
        case inputs.TrialOpened():
            take_opened(step, given)
        case inputs.FinalistsChosen():
            take_finalists(step, given)
        case inputs.EndWritten(ended=ended):
            step.announce(ended)
        case inputs.StudyUnavailable(unwritten=unwritten):
            step.state = replace(step.state, ended=True, awaited=None)
            if unwritten is not None:
                step.take_back(unwritten.record)


def _retry_interrupted(step: Step, trial: inputs.InterruptedTrial, *, alone: bool) -> None:
    """Closes a trial that an earlier driver left running, and schedules its retry.

    A plan that ran alone when two drivers in a row died is suspected, and blamed at once if no
    measured plan can check the machine. One that is outside of today's space is dropped, and a
    repeat is chosen anew.
    """
    cause = trial.reason.cause if isinstance(trial.reason, Retry) else None
    before = cause if isinstance(cause, DriverDied) else None
    if before is None or not (alone and before.alone):
        step.instruct(Abandon(number=trial.number))
        if trial.in_space and not measures_again(trial.reason):
            death = DriverDied(times=before.times + 1 if before else 1, alone=alone)
            again = (trial.plan, Retry(trial=trial.number, cause=death))
            step.state = replace(step.state, retries=(*step.state.retries, again))
        return
    record = closed_record(trial.number, trial.plan, DRIVER_DIED_TWICE, trial.reason, at=step.now)
    if last_measured(step) is None:
        step.abandon(record)
        return
    under_way = TrialStarted(
        number=trial.number,
        plan=trial.plan,
        reason=trial.reason,
        deadline_seconds=0.0,
        at=step.now,
    )
    step.announce(under_way)
    suspect = TrialEnded(record=record, at=step.now)
    step.state = replace(step.state, suspects=(*step.state.suspects, suspect))


def _finish_trial(step: Step, report: inputs.TrialFinished) -> None:
    group = step.state.groups.get(report.group)
    if group is None or group.trial != report.number:
        return  # it came twice, or after the group was given up
    trial = step.state.running(report.number)
    if trial is None:  # the sweep was stopped meanwhile
        step.set_group(report.group, Group())
        return
    if trial.validation != report.validation:
        return  # it came twice: the group validates that trial by now
    decision = _consequences(trial, report.outcome)
    ended = report.workers_ended or bool(report.lost_nodes)
    free = Group(processes=None if ended or decision.replace else group.processes)
    step.set_group(report.group, free)
    if decision.replace and not report.workers_ended:
        step.instruct(Release(group=report.group))
    _announce_workers(step, trial, report)
    if report.lost_nodes:
        blamed = _lose_nodes(step, trial, report)
    else:
        blamed = None
        if is_loss_of_processes(report.outcome):
            _avoid(step, trial, group)
        _end_trial(step, trial, report, decision)
    reason = decision.replace or (WorkersGone() if report.workers_ended else None)
    if reason:
        step.note(GroupReplaced(reason=reason))
    step.note(*(Message(text=fault) for fault in report.faults))
    if blamed:
        step.note(blamed)


def _consequences(trial: TrialStarted, outcome: Outcome) -> FailureDecision:
    """Decides what follows; earlier failures of the machine do not count against the plan."""
    if not isinstance(trial.reason, Retry):
        return failure_decision(outcome, second=trial.validation)
    cause = trial.reason.cause
    failed_through_machine = isinstance(cause, Stopped | NoRoom) or (
        isinstance(cause, WorkersFailed) and is_machine_failure(cause.outcome)
    )
    second = not failed_through_machine
    if is_machine_failure(outcome):  # a driver that died before says nothing about the plan
        second = isinstance(cause, WorkersFailed)
    return failure_decision(outcome, second=second)


def _announce_workers(step: Step, trial: TrialStarted, report: inputs.TrialFinished) -> None:
    fingerprint, sweep = report.fingerprint, step.state.sweep
    if fingerprint is None:
        return
    if sweep.fingerprint is not None and not is_other_group(sweep.fingerprint, fingerprint):
        return
    step.announce(
        GroupStarted(
            world_size=trial.plan.world_size,
            fingerprint=fingerprint,
            start_seconds=_waited_seconds(trial, report),
            at=step.now,
        )
    )
    others, changes = differing(sweep.records, fingerprint)
    announced = (one.note for one in sweep.notes)
    known = {one.differences for one in announced if isinstance(one, FingerprintsDiffer)}
    if changes and changes not in known:
        step.note(FingerprintsDiffer(trials=len(others), differences=changes))


def _end_trial(
    step: Step, trial: TrialStarted, report: inputs.TrialFinished, decision: FailureDecision
) -> None:
    record = Record(
        number=trial.number,
        plan=trial.plan,
        outcome=report.outcome,
        reason=trial.reason,
        # the start of its workers is no cost of the plan; `TrialEnded.waited_seconds` has it
        started_at=report.started_at + (report.workers_seconds if report.fingerprint else 0.0),
        ended_at=report.ended_at,
        fingerprint=report.fingerprint,
        forecast=trial.forecast or report.forecast,
        validation=trial.validation,
    )
    conclude_trial(step, trial, record, decision, _waited_seconds(trial, report))


def _waited_seconds(trial: TrialStarted, report: inputs.TrialFinished) -> float:
    """Returns how long a trial waited for its workers."""
    queued = max(report.started_at - trial.at, 0.0)  # clocks of two hosts may differ
    return queued + report.workers_seconds


def _lose_nodes(step: Step, trial: TrialStarted, report: inputs.TrialFinished) -> PlanBlamed | None:
    """Runs a trial again whose nodes were lost; after too many losses, its plan is blamed."""
    state, key = step.state, trial.plan.key
    losses = state.node_losses.get(key, 0) + 1
    step.state = replace(
        step.state,
        node_losses={**state.node_losses, key: losses},
        lost_at={**state.lost_at, **dict.fromkeys(report.lost_nodes, step.now)},
    )
    loss = NodesLost(nodes=tuple(state.names.get(node, node) for node in report.lost_nodes))
    if losses <= MAX_NODE_LOSSES:
        step.interrupt(trial, loss)
        return None
    _end_trial(step, trial, report, _consequences(trial, report.outcome))
    return PlanBlamed(trial=trial.number, loss=loss)


def _avoid(step: Step, trial: TrialStarted, group: Group) -> None:
    """Takes note of the nodes on which a trial died: the next one of its plan prefers others."""
    nodes = group.placement.nodes if group.placement else frozenset[str]()
    step.state = replace(step.state, avoided={**step.state.avoided, trial.plan.key: nodes})


def _end_groups(step: Step, ended: inputs.GroupsEnded) -> None:
    for name in ended.groups:
        group = step.state.groups.get(name)
        step.set_group(name, None)
        if group is not None:
            _lose_trial(step, group, CONTACT_LOST if ended.lost_contact else RUNNER_DIED)
    step.note(*(Message(text=fault) for fault in ended.faults))


def _lose_trial(step: Step, group: Group, outcome: Crashed) -> None:
    """Takes note of the death of a trial's group without a report."""
    trial = None if group.trial is None else step.state.running(group.trial)
    if trial is None:
        return
    _avoid(step, trial, group)
    record = closed_record(trial.number, trial.plan, outcome, trial.reason, at=step.now)
    record = replace(record, forecast=trial.forecast, validation=trial.validation)
    conclude_trial(step, trial, record, _consequences(trial, outcome))


def _kill_overdue(step: Step) -> None:
    for name, group in tuple(step.state.groups.items()):
        if group.trial is not None and step.now >= group.overdue_at:
            step.set_group(name, None)
            step.instruct(Kill(group=name))
            _lose_trial(step, group, GROUP_OVERDUE)


def _stop(step: Step, stop: inputs.StopRequested) -> None:
    """Closes all trials, so that the next driver retries them, and ends the sweep."""
    for trial in step.state.sweep.running:
        step.close(trial, stop.cause)
    step.state = replace(
        step.state, pending=None, out_of_room_since=None, awaited=None, suspects=()
    )
    step.end(stop.cause)
