"""Choice of what runs next: trials on nodes with room, then validations, then nothing."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import replace
from enum import Enum

from orchestrator.core.budget import (
    Stop,
    incumbent,
    next_action,
    not_worth_it,
    repeat_deadline_seconds,
    trial_deadline_seconds,
    validation_deadline_seconds,
)
from orchestrator.core.controller_state import (
    ChoosingFinalists,
    Group,
    Opening,
    PendingTrial,
    Proposing,
)
from orchestrator.core.events import TrialStarted
from orchestrator.core.inputs import FinalistsChosen, PlanProposed, TrialOpened
from orchestrator.core.instructions import (
    ChooseFinalists,
    Open,
    Propose,
    Release,
    RequestCapacity,
    Run,
    StartGroup,
)
from orchestrator.core.notes import GroupReplaced, PlansLeftOut, TrialWaits
from orchestrator.core.placement import (
    PlacementDecision,
    Processes,
    assign,
    missing_room,
    nodes_with_accelerator,
    reason_to_replace,
    shortfall,
)
from orchestrator.core.reasons import (
    IsBaseline,
    NoPlanForNodes,
    Remeasures,
    StopReason,
    Validates,
)
from orchestrator.core.records import Record
from orchestrator.core.repeats import FINALISTS, is_repeat, next_repeat, repeats_enabled
from orchestrator.core.step import Step
from search_spaces.plan import Plan
from search_spaces.trial import TrialRequest

# After its deadline a group ends its workers, which takes minutes if they hang, and reports. Then
# its own process has to be killed.
REPORT_SECONDS = 600.0
_GROUP_START_SECONDS = 10.0  # processes of groups start one after the other, on the head node


class Next(Enum):
    """Result of the attempt to start a trial."""

    STARTED = "started"  # or asked for: an answer is awaited
    LATER = "later"  # nothing can start before a running trial has ended
    ENDED = "ended"  # the sweep is over


def schedule(step: Step, declined: Set[str] | None = None) -> None:
    """Starts whatever can start now, but at most one group that is not there yet.

    The next tick starts another: so the first of a thousand groups does not wait for the last one's
    trial to be chosen.

    Args:
        step: The step to add to.
        declined: Accelerators for which the sampler's best plan was just found not worth its time.
    """
    while _can_start(step) and _start_next(step, declined) is Next.STARTED:
        pass
    if step.state.ended:
        step.dismiss(tuple(step.state.idle_groups()))


def _can_start(step: Step) -> bool:
    state = step.state
    if state.ended or state.awaited is not None or not state.has_capacity():
        return False
    return not step.has_written and not step.starts_group


def _start_next(step: Step, declined: Set[str] | None) -> Next:
    state = step.state
    for kind, trial in state.pending.items():
        if _run(step, trial):
            step.change(pending=_without(step.state.pending, kind))
            return Next.STARTED
    ready = state.settings.requests.keys() - state.left_out - state.pending.keys()
    free = ready & state.accelerators_with_room(step.now)
    if not free and state.pending:
        return _wait(step)
    # first a trial that can start now, else one that waits for room
    result = _decide(step, free or ready, ready, declined)
    if result is Next.LATER and free < ready:
        result = _decide(step, ready, ready, declined)
    if result is Next.LATER and step.state.pending:
        return _wait(step)
    if result is Next.LATER and not any(g.trial is not None for g in state.groups.values()):
        step.change(stop_reason=NoPlanForNodes())
        return _conclude(step, NoPlanForNodes())
    return result


def _decide(step: Step, kinds: Set[str], ready: Set[str], declined: Set[str] | None) -> Next:
    """Decides on the next trial.

    Args:
        step: The step to add to.
        kinds: Accelerators of which a new plan may be.
        ready: Accelerators for which no trial waits for room yet; those of retries.
        declined: See `schedule`.
    """
    state = step.state
    if state.stop_reason is not None:
        return _conclude(step, state.stop_reason)
    untried = sum(state.untried.values())
    action = next_action(state.sweep, step.now, untried)
    if isinstance(action, Stop):
        return _conclude(step, action.reason)
    for again in state.retries:
        plan, reason = again
        if plan.accelerator in ready:
            step.change(retries=tuple(other for other in state.retries if other is not again))
            return _open(step, Opening(plan=plan, reason=reason, retry_of=reason.trial))
    baseline = state.sweep.space.baseline
    if action.baseline and baseline.accelerator in ready:
        return _open(step, Opening(plan=baseline, reason=IsBaseline()))
    if not any(state.untried.get(kind) for kind in kinds) or (declined and kinds <= declined):
        return Next.LATER
    everywhere = kinds == state.settings.requests.keys()
    step.change(awaited=Proposing(accelerators=frozenset(kinds)))
    step.instruct(Propose(accelerators=None if everywhere else frozenset(kinds)))
    return Next.STARTED


def _open(step: Step, opening: Opening) -> Next:
    step.change(awaited=opening)
    if not isinstance(opening.reason, Remeasures):
        step.change(finalists=None)  # the trial may change which plans lead
    step.instruct(Open(plan=opening.plan, reason=opening.reason, retry_of=opening.retry_of))
    return Next.STARTED


def take_proposal(step: Step, proposed: PlanProposed) -> frozenset[str] | None:
    """Opens a trial of the proposed plan, unless it takes longer than it is expected to save.

    Returns:
        The accelerators that the plan was to be for, if it is declined.
    """
    asked = step.state.awaited
    if not isinstance(asked, Proposing):
        return None
    step.change(awaited=None)
    if stop := not_worth_it(step.state.sweep, proposed.saving, proposed.seconds):
        if asked.accelerators == step.state.settings.requests.keys():
            step.change(stop_reason=stop.reason)
        return asked.accelerators
    _open(
        step,
        Opening(plan=proposed.plan, reason=proposed.reason, ask_seconds=proposed.ask_seconds),
    )
    return None


def take_opened(step: Step, opened: TrialOpened) -> None:
    """Starts a trial that the study has opened."""
    opening = step.state.awaited
    if not isinstance(opening, Opening):
        return
    step.change(awaited=None)
    sweep, plan = step.state.sweep, opening.plan
    is_repeat = isinstance(opening.reason, Remeasures)
    if is_repeat:
        deadline_seconds = repeat_deadline_seconds(sweep, plan)
    else:
        step.count_untried(plan.accelerator, -1)
        deadline_seconds = trial_deadline_seconds(sweep, step.now, plan, opened.forecast)
    step.announce(
        TrialStarted(
            number=opened.number,
            plan=plan,
            reason=opening.reason,
            deadline_seconds=deadline_seconds,
            at=step.now,
            forecast=opened.forecast,
            ask_seconds=opening.ask_seconds,
            retry_of=opening.retry_of,
        )
    )
    request = TrialRequest(
        number=opened.number,
        plan=plan,
        spec=sweep.for_workers,
        incumbent=None if is_repeat else incumbent(sweep, plan),
    )
    _place(step, PendingTrial(request=request, deadline_seconds=deadline_seconds))


def take_finalists(step: Step, chosen: FinalistsChosen) -> None:
    """Takes note of the plans that are measured again."""
    if isinstance(step.state.awaited, ChoosingFinalists):
        step.change(awaited=None, finalists=chosen.plans)


def _conclude(step: Step, reason: StopReason) -> Next:
    """Ends the search; once no trial runs, measures the leaders again, validates, and ends."""
    step.change(stop_reason=reason)
    if any(not trial.is_repeat for trial in step.state.sweep.running):
        return Next.LATER
    if repeats := _remeasure(step):
        return repeats
    if step.state.sweep.running:
        return Next.LATER
    trial = step.state.sweep.next_to_validate
    if trial is None:
        step.end(reason)
        return Next.ENDED
    _validate(step, trial)
    return Next.STARTED


def _remeasure(step: Step) -> Next | None:
    """Measures a leading plan again; None if no more repeats are due."""
    sweep, finalists = step.state.sweep, step.state.finalists
    if not repeats_enabled(sweep.spec) or sweep.best is None:
        return None
    if finalists is None:
        step.change(awaited=ChoosingFinalists())
        step.instruct(ChooseFinalists(count=FINALISTS))
        return Next.STARTED
    running = [trial.plan for trial in sweep.running]
    plan = next_repeat(sweep.records, running, finalists, sweep.space.baseline, sweep.spec)
    if plan is None:
        return None
    if plan.accelerator in step.state.pending:
        return Next.LATER
    trial = next(one for one in sweep.records if one.plan == plan and not is_repeat(one))
    return _open(step, Opening(plan=plan, reason=Remeasures(trial=trial.number)))


def _validate(step: Step, trial: Record) -> None:
    deadline_seconds = validation_deadline_seconds(step.state.sweep, trial)
    step.announce(
        TrialStarted(
            number=trial.number,
            plan=trial.plan,
            reason=Validates(trial=trial.number),
            deadline_seconds=deadline_seconds,
            at=step.now,
            validation=True,
        )
    )
    request = TrialRequest(
        number=trial.number,
        plan=trial.plan,
        spec=step.state.sweep.for_workers,
        # the first rank may write a checkpoint while all others wait for it
        collective_seconds=deadline_seconds,
        validation=True,
    )
    _place(step, PendingTrial(request=request, deadline_seconds=deadline_seconds))


def _place(step: Step, trial: PendingTrial) -> None:
    """Runs a trial, or lets it wait for room."""
    if not _run(step, trial):
        pending = {**step.state.pending, trial.request.plan.accelerator: trial}
        step.change(pending=pending)


def _run(step: Step, trial: PendingTrial) -> bool:
    """Runs a trial where there is room for it; returns False if there is none."""
    plan = trial.request.plan
    decision = _find_room(step, plan, alone=trial.request.validation)
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
    step.change(names={**state.names, **{node.id: node.name for node in nodes}})
    needed = Processes.of(plan, state.settings.device, placement)
    present = step.state.groups[name].processes
    reason = present and reason_to_replace(needed, present, fresh=trial.request.validation)
    if reason:
        step.note(GroupReplaced(reason=reason))
    start_seconds = 60 * state.sweep.spec.cluster.start_minutes
    if present is None:
        start_seconds += _GROUP_START_SECONDS * len(state.groups)
    group = Group(
        processes=needed,
        trial=trial.request.number,
        overdue_at=step.now + start_seconds + trial.deadline_seconds + REPORT_SECONDS,
    )
    step.set_group(name, group)
    step.instruct(
        Run(
            group=name,
            request=trial.request,
            device=state.settings.device,
            folder=state.settings.folder,
            deadline_seconds=trial.deadline_seconds,
            placement=placement,
            addresses=tuple((node.id, node.address) for node in nodes),
            fresh=reason is not None,
        )
    )
    return True


def _find_room(step: Step, plan: Plan, *, alone: bool) -> PlacementDecision | None:
    """Finds nodes for a plan, and requests the capacity that the sweep lacks."""
    state, settings = step.state, step.state.settings
    up = state.usable_nodes(step.now)
    running = state.placements()
    idle = [group.placement for _, group in state.idle_groups() if group.placement]
    kinds = settings.requests.keys() - state.left_out
    requests = [request for kind, request in settings.requests.items() if kind in kinds]
    if alone:
        requests = [replace(settings.requests[plan.accelerator], groups=1)]
    needs = tuple(shortfall(request, up, [*running, *idle]) for request in requests)
    if needs != state.needs:
        step.change(needs=needs)
        step.instruct(RequestCapacity(needs=needs))
    usable = nodes_with_accelerator(up, plan.accelerator)
    avoided = state.avoided.get(plan.key, frozenset())
    preferred = [node for node in usable if node.id not in avoided]
    decision = assign(plan, preferred, running, idle, share=settings.share) if avoided else None
    return decision or assign(plan, usable, running, idle, share=settings.share)


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
    step.change(groups_started=number)
    step.set_group(name, Group())
    step.instruct(StartGroup(group=name))
    return name


def _wait(step: Step) -> Next:
    """Waits for room, a bounded time once no running trial can make some."""
    numbers = [group.trial for group in step.state.groups.values() if group.trial is not None]
    busy = {trial.plan.accelerator for trial in step.state.sweep.running if trial.number in numbers}
    for kind, trial in step.state.pending.items():
        if kind not in busy and _has_timed_out(step, kind, trial):
            step.change(pending=_without(step.state.pending, kind))
            _leave_out(step, trial)
            return Next.STARTED
    return Next.LATER


def _has_timed_out(step: Step, kind: str, trial: PendingTrial) -> bool:
    if trial.since is None:
        trial = replace(trial, since=step.now)
        step.change(pending={**step.state.pending, kind: trial})
        nodes = step.state.usable_nodes(step.now)
        room = missing_room(trial.request.plan, nodes, step.state.wait_seconds)
        step.note(TrialWaits(trial=trial.request.number, room=room))
    assert trial.since is not None
    return step.now - trial.since >= step.state.wait_seconds


def _leave_out(step: Step, pending: PendingTrial) -> None:
    plan, state = pending.request.plan, step.state
    room = missing_room(plan, state.usable_nodes(step.now), state.wait_seconds)
    trial = state.running(pending.request.number)
    assert trial is not None
    step.change(left_out=state.left_out | {plan.accelerator})
    if pending.request.validation or step.state.left_out == state.settings.requests.keys():
        step.give_up(trial, room)
    else:
        step.note(PlansLeftOut(room=room))
        step.interrupt(trial, room, retry=False)


def _without(pending: Mapping[str, PendingTrial], kind: str) -> Mapping[str, PendingTrial]:
    return {other: trial for other, trial in pending.items() if other != kind}
