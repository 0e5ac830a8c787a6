"""Choice of what runs next: trials on nodes with room, then validations, then nothing."""

from dataclasses import replace

from orchestrator.core import budget
from orchestrator.core.blame import next_check
from orchestrator.core.controller_state import ControllerState, Group
from orchestrator.core.events import TrialStarted
from orchestrator.core.inputs import FinalistsChosen, PlanProposed, TrialOpened
from orchestrator.core.instructions import (
    ChooseFinalists,
    Closing,
    Dismiss,
    Open,
    Propose,
    Question,
    Release,
    RequestCapacity,
    Run,
    StartGroup,
)
from orchestrator.core.notes import GroupReplaced, TrialWaits
from orchestrator.core.placement import (
    PlacementDecision,
    Processes,
    assign,
    capacities,
    reason_to_replace,
    shortfall,
)
from orchestrator.core.reasons import (
    IsBaseline,
    MachineFailed,
    Remeasures,
    Retry,
    StopReason,
    Validates,
    measures_again,
)
from orchestrator.core.records import Record, learned_noise
from orchestrator.core.repeats import (
    FINALISTS,
    is_repeat,
    next_repeat,
    repeats_enabled,
    repeats_left,
)
from orchestrator.core.state import SweepState
from orchestrator.core.step import Step
from search_spaces.plan import Plan
from search_spaces.trial import DriverDied, NoRoom, TrialRequest

# After its deadline a group ends its workers, which takes minutes if they hang, and reports. Then
# its own process has to be killed.
REPORT_SECONDS = 600.0
_GROUP_START_SECONDS = 10.0  # processes of groups start one after the other, on the head node


def schedule(step: Step) -> None:
    """Starts what can start now, but at most one new group.

    The next tick starts another, so that the first of a thousand groups does not wait while trials
    of the others are chosen.
    """
    while _can_start(step) and _start_next(step):
        pass
    if step.state.ended:
        for name, group in tuple(step.state.idle_groups()):
            step.set_group(name, replace(group, dismissed=True))
            step.instruct(Dismiss(group=name))


def _can_start(step: Step) -> bool:
    state = step.state
    if state.ended or state.awaited is not None:
        return False
    if len(state.groups) >= state.driver.sweep.groups and not any(state.idle_groups()):
        return False
    if step.now < state.paused_until:
        return False
    return not any(isinstance(one, Closing | StartGroup) for one in step.instructions)


def _start_next(step: Step) -> bool:
    """Starts or asks for a trial; returns False if none can start before a running one ends."""
    state = step.state
    if state.pending is not None:
        if not _run(step, state.pending):
            return _wait(step, state.pending)
        _forget_pending(step)
        return True
    return not _runs_alone(state) and _decide(step)


def _decide(step: Step) -> bool:
    """Decides on the next trial, of which none waits for room yet."""
    state = step.state
    if (check := next_check(step)) is not None:
        return _ask(step, check)
    if state.stop_reason is not None:
        return _conclude(step, state.stop_reason)
    if (reason := budget.reason_to_end(state.sweep, step.now)) is not None:
        return _conclude(step, reason)
    if state.retries:
        (plan, retry), *others = state.retries
        if _is_suspected_of_drivers(retry) and state.sweep.running:
            return False
        step.state = replace(step.state, retries=tuple(others))
        return _ask(step, Open(plan=plan, reason=retry))
    if budget.baseline_is_due(state.sweep):
        return _ask(step, Open(plan=state.sweep.space.baseline, reason=IsBaseline()))
    return _ask(step, Propose())


def _runs_alone(state: ControllerState) -> bool:
    """Returns True while a trial runs that must run alone."""
    suspects = {suspect.record.number for suspect in state.suspects}
    return any(
        isinstance(trial.reason, Retry) and _is_suspected_of_drivers(trial.reason)
        for trial in state.sweep.running
        if trial.number not in suspects
    )


def _is_suspected_of_drivers(reason: Retry) -> bool:
    return isinstance(reason.cause, DriverDied) and reason.cause.times > 1


def _ask(step: Step, asked: Question) -> bool:
    step.state = replace(step.state, awaited=asked)
    step.instruct(asked)
    return True


def take_proposal(step: Step, proposed: PlanProposed) -> None:
    """Opens a trial of the proposed plan, unless it takes longer than it is expected to save."""
    if not isinstance(step.state.awaited, Propose):
        return
    step.state = replace(step.state, awaited=None)
    if reason := budget.not_worth_it(step.state.sweep, proposed.saving, proposed.seconds):
        step.state = replace(step.state, stop_reason=reason)
        return
    _ask(step, Open(plan=proposed.plan, reason=proposed.reason, ask_seconds=proposed.ask_seconds))


def take_opened(step: Step, opened: TrialOpened) -> None:
    """Starts a trial that the study has opened."""
    asked = step.state.awaited
    if not isinstance(asked, Open):
        return
    step.state = replace(step.state, awaited=None)
    sweep, plan = step.state.sweep, asked.plan
    if measures_again(asked.reason):
        deadline_seconds = budget.repeat_deadline_seconds(sweep, plan)
    else:
        deadline_seconds = budget.trial_deadline_seconds(sweep, step.now, plan, opened.forecast)
    started = TrialStarted(
        number=opened.number,
        plan=plan,
        reason=asked.reason,
        deadline_seconds=deadline_seconds,
        at=step.now,
        forecast=opened.forecast,
        ask_seconds=asked.ask_seconds,
    )
    _place(step, started)


def take_finalists(step: Step, chosen: FinalistsChosen) -> None:
    """Opens a repeat of one of the plans that lead now, or takes note that none is due."""
    if not isinstance(step.state.awaited, ChooseFinalists):
        return
    step.state = replace(step.state, awaited=None)
    sweep = step.state.sweep
    running = [trial.plan for trial in sweep.running]
    plan = next_repeat(sweep.records, running, chosen.plans, sweep.space.baseline, sweep.spec)
    if plan is None:
        step.state = replace(step.state, repeats_done=True)
        return
    trial = next(one for one in sweep.records if one.plan == plan and not is_repeat(one))
    _ask(step, Open(plan=plan, reason=Remeasures(trial=trial.number)))


def _conclude(step: Step, reason: StopReason) -> bool:
    """Ends the search; once no trial runs, measures the leaders again, validates, and ends."""
    step.state = replace(step.state, stop_reason=reason)
    if any(not trial.is_repeat for trial in step.state.sweep.running):
        return False
    if not isinstance(reason, MachineFailed) and _remeasure(step):
        return True
    if step.state.sweep.running:
        return False
    trial = step.state.sweep.next_to_validate
    if trial is None or isinstance(reason, MachineFailed):
        step.end(reason)
        return False
    _validate(step, trial)
    return True


def _remeasure(step: Step) -> bool:
    """Asks which plans lead now, to measure one of them again; returns False if none is due."""
    sweep = step.state.sweep
    running = [trial.plan for trial in sweep.running]
    if (
        step.state.repeats_done
        or not repeats_enabled(sweep.spec)
        or sweep.best is None
        or repeats_left(sweep.records, running, sweep.spec) < 1
    ):
        return False
    return _ask(step, ChooseFinalists(count=FINALISTS))


def _validate(step: Step, trial: Record) -> None:
    started = TrialStarted(
        number=trial.number,
        plan=trial.plan,
        reason=Validates(trial=trial.number),
        deadline_seconds=budget.validation_deadline_seconds(step.state.sweep, trial),
        at=step.now,
        validation=True,
    )
    _place(step, started)


def _place(step: Step, trial: TrialStarted) -> None:
    step.announce(trial)
    if not _run(step, trial):
        step.state = replace(step.state, pending=trial)


def _request(sweep: SweepState, trial: TrialStarted) -> TrialRequest:
    """Returns what the workers of a trial are to do."""
    device = sweep.last_fingerprint
    request = TrialRequest(
        number=trial.number,
        plan=trial.plan,
        spec=sweep.for_workers,
        validation=trial.validation,
        step=sweep.space.step,
        noise=None if device is None else learned_noise(sweep.records, device),
    )
    if request.has_long_waits:
        request = replace(request, collective_seconds=trial.deadline_seconds)
    if trial.validation:
        return replace(request, dependences=sweep.space.dependences)
    if trial.is_repeat:
        # its speed is the same, and its losses measure rounding
        return replace(request, perturbed=trial.plan.precision != "fp32")
    return replace(request, incumbent=budget.incumbent(sweep, trial.plan))


def _run(step: Step, trial: TrialStarted) -> bool:
    """Runs a trial where there is room for it; returns False if there is none."""
    plan = trial.plan
    decision = _find_room(step, plan, alone=trial.validation)
    if decision is None:
        return False
    state, placement = step.state, decision.placement
    name = _choose_group(step, decision)
    for other, evicted in tuple(state.idle_groups()):
        if other != name and evicted.placement in decision.evicted:
            step.set_group(other, replace(evicted, processes=None))
            step.instruct(Release(group=other))
    nodes = sorted(
        (node for node in state.nodes if node.id in placement.nodes), key=lambda node: node.id
    )
    step.state = replace(
        step.state, names={**state.names, **{node.id: node.name for node in nodes}}
    )
    needed = Processes.of(plan, state.driver.device, placement)
    present = step.state.groups[name].processes
    reason = present and reason_to_replace(needed, present, fresh=trial.validation)
    if reason:
        step.note(GroupReplaced(reason=reason))
    start_seconds = budget.start_deadline_seconds(state.sweep.spec)
    if present is None:
        start_seconds += _GROUP_START_SECONDS * len(state.groups)
    group = Group(
        processes=needed,
        trial=trial.number,
        overdue_at=step.now + start_seconds + trial.deadline_seconds + REPORT_SECONDS,
    )
    step.set_group(name, group)
    step.instruct(
        Run(
            group=name,
            request=_request(state.sweep, trial),
            device=state.driver.device,
            folder=state.driver.folder,
            deadline_seconds=trial.deadline_seconds,
            placement=placement,
            addresses=tuple((node.id, node.address) for node in nodes),
            fresh=reason is not None,
        )
    )
    return True


def _find_room(step: Step, plan: Plan, *, alone: bool) -> PlacementDecision | None:
    """Finds nodes for a plan, and requests the capacity that the sweep lacks."""
    state, wanted = step.state, step.state.driver.request
    up = state.usable_nodes(step.now)
    running = state.placements()
    idle = [group.placement for _, group in state.idle_groups() if group.placement]
    request = replace(wanted, groups=1) if alone else wanted
    need = shortfall(request, up, [*running, *idle])
    if need != state.need:
        step.state = replace(step.state, need=need)
        step.instruct(RequestCapacity(need=need))
    avoided = state.avoided.get(plan.key, frozenset())
    preferred = [node for node in up if node.id not in avoided]
    decision = assign(plan, preferred, running, idle, share=wanted.share) if avoided else None
    return decision or assign(plan, up, running, idle, share=wanted.share)


def _choose_group(step: Step, decision: PlacementDecision) -> str:
    """Returns the idle group that suits a placement best, or starts a group.

    The best has its workers there. Next best is one that loses its workers to the trial, then one
    without workers.
    """

    def unsuited(group: Group) -> int:
        if group.placement == decision.placement:
            return 0
        if group.placement in decision.evicted:
            return 1
        return 3 if group.processes else 2

    idle = sorted(step.state.idle_groups(), key=lambda item: unsuited(item[1]))
    if idle:
        return idle[0][0]
    number = step.state.groups_started + 1
    name = f"group-{number}"
    step.state = replace(step.state, groups_started=number)
    step.set_group(name, Group())
    step.instruct(StartGroup(group=name))
    return name


def _wait(step: Step, trial: TrialStarted) -> bool:
    """Waits for room, a bounded time once no running trial can make some."""
    state = step.state
    running = {one.number for one in state.sweep.running}
    if any(group.trial in running for group in state.groups.values()):
        return False
    room = NoRoom(
        ranks=trial.plan.world_size,
        ranks_per_node=trial.plan.tensor,
        minutes=state.wait_seconds / 60,
        available=capacities(state.usable_nodes(step.now)),
    )
    if state.out_of_room_since is None:
        step.state = replace(step.state, out_of_room_since=step.now)
        if state.wait_seconds:
            step.note(TrialWaits(trial=trial.number, room=room))
    since = step.state.out_of_room_since
    if since is not None and step.now - since < state.wait_seconds:
        return False
    _forget_pending(step)
    step.close_suspects()
    step.close(trial, room)
    step.state = replace(step.state, stop_reason=room)
    if trial.validation:  # after the search
        step.end(room)
    return True


def _forget_pending(step: Step) -> None:
    step.state = replace(step.state, pending=None, out_of_room_since=None)
