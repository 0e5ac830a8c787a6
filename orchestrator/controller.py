"""The sweep controller, which carries out the decisions of `core`."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence, Set
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import TypeVar, final

from orchestrator.core.budget import (
    Stop,
    incumbent,
    next_action,
    not_worth_it,
    trial_deadline_seconds,
    validation_deadline_seconds,
)
from orchestrator.core.events import (
    Event,
    GroupStarted,
    Noted,
    SweepEnded,
    SweepStarted,
    TrialEnded,
    TrialStarted,
)
from orchestrator.core.failures import DRIVER_DIED_TWICE, RUNNER_DIED, failure_decision
from orchestrator.core.messages import AbstractDriver, Assignment, Later, TrialReport
from orchestrator.core.notes import ForecastsEnded, Note, PlanBlamed, PlansLeftOut, TrialWaits
from orchestrator.core.placement import (
    AbstractNodes,
    CapacityRequest,
    Node,
    Placement,
    assign,
    missing_room,
    nodes_with_accelerator,
    shortfall,
)
from orchestrator.core.reasons import (
    IsBaseline,
    NoPlanForNodes,
    Retry,
    StopReason,
    TrialReason,
    Validates,
)
from orchestrator.core.records import Record, closed_record
from orchestrator.core.state import AbstractCallback, SweepState, advance, begin
from orchestrator.forecast.forecaster import AbstractForecasts, NoForecasts
from orchestrator.study.study import Study
from search_spaces.costs.forecast import SearchPrior
from search_spaces.facts import ClusterFacts
from search_spaces.plan import Plan
from search_spaces.trial import (
    Cancelled,
    Crashed,
    DriverDied,
    Interruption,
    NodesLost,
    NoRoom,
    Outcome,
    PlanForecast,
    Stopped,
    TrialRequest,
    WorkersFailed,
)

Forecast = TypeVar("Forecast")
_NOTICE_SECONDS = 120.0  # a lost node may be listed as up for this long; if it is after, it is back
MAX_NODE_LOSSES = 2  # of nodes during trials of one plan; after more the plan itself is blamed


class Driver(AbstractDriver):
    """Carries out the decisions of `core`, and reports events to the study and the callbacks."""

    def __init__(
        self,
        study: Study,
        cluster: ClusterFacts,
        callbacks: Sequence[AbstractCallback],
        begun: SweepStarted,
        clock: Callable[[], float] = time.time,
        forecasts: AbstractForecasts | None = None,
    ) -> None:
        self.state: SweepState = begin(begun)
        self._study = study
        self._cluster = cluster
        self._listeners = callbacks
        self._clock = clock
        self._forecasts = forecasts or NoForecasts()
        self._stopped = False
        # why no trial follows, once that is so; validations may
        self._search_ended: StopReason | None = None
        self._retries: list[tuple[Plan, Retry]] = []
        for listener in callbacks:
            listener.on_event(begun, self.state)

    def repair(self) -> None:
        """Closes trials that an earlier driver left running, and schedules their retries.

        A retry that was interrupted is blamed on its plan. A plan outside of today's space is
        dropped.
        """
        for trial in self._study.interrupted():
            if trial.retry_of is None:
                self._study.abandon(trial.number)
                if trial.plan in self.state.space.candidates:
                    reason = Retry(trial=trial.number, cause=DriverDied())
                    self._retries.append((trial.plan, reason))
                continue
            reason = Retry(trial=trial.retry_of, cause=DriverDied())
            record = closed_record(
                trial.number, trial.plan, DRIVER_DIED_TWICE, reason, at=self._clock()
            )
            self._study.abandon(trial.number, record)
            self._emit(TrialEnded(record=record, at=self._clock()))

    def propose(
        self, _: Sequence[Placement] = (), kinds: Collection[str] | None = None
    ) -> Assignment | Later | None:
        """Returns the next trial, or a validation once the search has ended; None after that.

        A validation has the cluster to itself, so that it waits until no trial runs.

        Args:
            kinds: Accelerators with free nodes, to which the proposal is restricted; None: all.
        """
        if self._stopped:
            return None
        now = self._clock()
        if self._search_ended is not None:
            return self._conclude_search(self._search_ended, now)
        action = next_action(self.state, now, len(self._study.untried()))
        if isinstance(action, Stop):
            return self._conclude_search(action.reason, now)
        if self._retries:
            plan, reason = self._retries.pop(0)
            return self._begin(plan, reason, now, retry_of=reason.trial)
        if action.baseline:
            return self._begin(self.state.space.baseline, IsBaseline(), now)
        if not self._study.untried(kinds):
            return Later()
        proposal = self._study.propose(self._search_prior(), kinds)
        if stop := not_worth_it(self.state, proposal.saving, proposal.seconds):
            return self._conclude_search(stop.reason, now) if kinds is None else Later()
        seconds = max(self._clock() - now, 0.0)
        return self._begin(proposal.plan, proposal.reason, now, ask_seconds=seconds)

    def _begin(
        self,
        plan: Plan,
        reason: TrialReason,
        now: float,
        *,
        retry_of: int | None = None,
        ask_seconds: float | None = None,
    ) -> Assignment:
        number = self._study.ask(plan, reason, retry_of=retry_of)
        forecast = self._forecast(plan)
        deadline_seconds = trial_deadline_seconds(self.state, now, plan, forecast)
        started = TrialStarted(
            number=number,
            plan=plan,
            reason=reason,
            deadline_seconds=deadline_seconds,
            at=now,
            forecast=forecast,
            ask_seconds=ask_seconds,
            retry_of=retry_of,
        )
        self._emit(started)
        request = TrialRequest(
            number=number,
            plan=plan,
            spec=self.state.for_workers,
            incumbent=incumbent(self.state, plan),
        )
        return self._assignment(request, deadline_seconds)

    def _conclude_search(self, reason: StopReason, now: float) -> Assignment | Later | None:
        self._search_ended = reason
        if self.state.running:
            return Later()
        if (trial := self.state.next_to_validate) is not None:
            return self._validate(trial, now)
        self.end(reason)
        return None

    def _validate(self, trial: Record, now: float) -> Assignment:
        deadline_seconds = validation_deadline_seconds(self.state, trial)
        self._emit(
            TrialStarted(
                number=trial.number,
                plan=trial.plan,
                reason=Validates(trial=trial.number),
                deadline_seconds=deadline_seconds,
                at=now,
                validation=True,
            )
        )
        request = TrialRequest(
            number=trial.number,
            plan=trial.plan,
            spec=self.state.for_workers,
            # the first rank may write a checkpoint while all others wait for it
            collective_seconds=deadline_seconds,
            validation=True,
        )
        return self._assignment(request, deadline_seconds)

    def _assignment(self, request: TrialRequest, deadline_seconds: float) -> Assignment:
        return Assignment(
            request=request,
            device=self._cluster.device,
            deadline_seconds=deadline_seconds,
            folder=str(Path.cwd()),
            fresh=request.validation,
        )

    def conclude(self, report: TrialReport) -> None:
        """Records the end of a trial in the study, then emits its events; or schedules a retry."""
        if report.fingerprint is not None and report.fingerprint != self.state.fingerprint:
            self._emit(
                GroupStarted(
                    world_size=self._running(report.number).plan.world_size,
                    fingerprint=report.fingerprint,
                    at=self._clock(),
                )
            )
            self.note(*self._study.transferred(report.fingerprint))
        trial = self._running(report.number)
        if not self._schedules_retry(trial, report.outcome):
            # still a forecast: the calibration has not seen this trial's record yet
            forecast = trial.forecast or (None if trial.validation else self._forecast(trial.plan))
            queued = max(report.started_at - trial.at, 0.0)  # clocks of two hosts may differ
            self._record(report.record_of(trial, forecast), queued + report.workers_seconds)
        self.note(*report.notes)

    def lose(self, number: int, notes: Sequence[Note] = ()) -> None:
        """Records the loss of the actor that ran the trial, and of its group."""
        trial = self._running(number)
        if not self._schedules_retry(trial, RUNNER_DIED):
            record = closed_record(number, trial.plan, RUNNER_DIED, trial.reason, at=self._clock())
            self._record(replace(record, forecast=trial.forecast, validation=trial.validation))
        self.note(*notes)

    def _schedules_retry(self, trial: TrialStarted, outcome: Outcome) -> bool:
        second = trial.validation or trial.retry_of is not None
        if not failure_decision(outcome, second=second).retry:
            return False
        assert isinstance(outcome, Crashed)
        self.interrupt(trial.number, WorkersFailed(outcome=outcome))
        return True

    def plan_of(self, number: int) -> Plan:
        return self._running(number).plan

    def interrupt(self, number: int, cause: Interruption, *, retry: bool = True) -> None:
        """Closes a trial that ended through no fault of its plan; `retry` runs it again."""
        trial = self._running(number)
        self._search_ended = None  # the reason may have counted on this trial
        if retry and not trial.validation:  # a missing validation is proposed again anyway
            self._retries.append((trial.plan, Retry(trial=number, cause=cause)))
        self._close(trial, cause)

    def exhaust(self, reason: StopReason) -> None:
        """Ends the search: no trial follows the running ones, but validations may."""
        self._search_ended = reason

    def give_up(self, number: int, room: NoRoom) -> None:
        """Closes a trial that has no room, and ends the search."""
        trial = self._running(number)
        self._close(trial, room)
        self._search_ended = room
        if trial.validation:
            self.end(room)

    def cancel(self, reason: Stopped) -> None:
        """Closes all running trials, so that the next driver retries them, and ends the sweep."""
        for trial in self.state.running:
            self._close(trial, reason)
        self.end(reason)

    def _close(self, trial: TrialStarted, cause: Interruption) -> None:
        self._study.abandon(trial.number)  # no effect for a validation, whose trial has ended
        now, outcome = self._clock(), Cancelled(cause=cause)
        record = closed_record(trial.number, trial.plan, outcome, trial.reason, at=now)
        self._emit(TrialEnded(record=replace(record, validation=trial.validation), at=now))

    def note(self, *notes: Note) -> None:
        for note in notes:
            self._emit(Noted(note=note, at=self._clock()))

    def end(self, reason: StopReason) -> None:
        """Ends the sweep once, with the regret bound of the untried plans."""
        if not self._stopped:
            self._stopped = True
            ended = SweepEnded(
                reason=reason,
                at=self._clock(),
                regret_bound=self._study.regret_bound(self._search_prior()),
                untried=len(self._study.untried()),
            )
            self._study.keep_end(ended)
            self._emit(ended)

    def _search_prior(self) -> SearchPrior | None:
        return self._noting_problems(self._forecasts.prior(self.state))

    def _forecast(self, plan: Plan) -> PlanForecast | None:
        return self._noting_problems(self._forecasts.expectation(plan, self.state))

    def _noting_problems(self, forecast: Forecast) -> Forecast:
        if problem := self._forecasts.problem():
            self.note(ForecastsEnded(error=problem))
        return forecast

    def _running(self, number: int) -> TrialStarted:
        return next(trial for trial in self.state.running if trial.number == number)

    def _record(self, record: Record, waited_seconds: float | None = None) -> None:
        if record.validation:
            self._study.keep_validation(record)
        else:
            self._study.tell(record)
        self._emit(TrialEnded(record=record, at=self._clock(), waited_seconds=waited_seconds))

    def _emit(self, event: Event) -> None:
        self.state = advance(self.state, event)
        for listener in self._listeners:
            listener.on_event(event, self.state)


@final
class PlacingDriver(AbstractDriver):
    """Places the trials of a driver on nodes.

    A trial without room waits for a bounded time. A trial whose node was lost is retried. Nodes
    that the groups need are kept up, and missing ones are requested.
    """

    def __init__(
        self,
        driver: Driver,
        nodes: AbstractNodes,
        *,
        wanted: Sequence[CapacityRequest],
        wait_seconds: float,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Creates a driver without running trials.

        Args:
            driver: Decides which trials run.
            nodes: The nodes of the cluster.
            wanted: The capacity to request for each accelerator that plans name.
            wait_seconds: Longest wait for missing nodes.
            clock: Returns the seconds since the epoch.
        """
        self._driver = driver
        self._nodes = nodes
        self._requests = {request.accelerator: request for request in wanted}
        self._share = any(request.share for request in wanted)
        self._wait_seconds = wait_seconds
        self._clock = clock
        self._running: dict[int, Placement] = {}
        self._waiting: dict[str, Assignment] = {}  # trials without room, by accelerator
        self._waiting_since: dict[str, float] = {}  # while no running trial could make room for it
        self._skipped: set[str] = set()  # accelerators whose nodes did not come in time
        self._losses: Counter[str] = Counter()  # of nodes during trials of a plan, by plan key
        self._avoided_nodes: dict[str, Set[str]] = {}  # where workers died, by plan key
        self._lost_at: dict[str, float] = {}  # time of each node's loss
        self._names: dict[str, str] = {}  # of nodes, for messages

    def propose(self, idle: Sequence[Placement] = ()) -> Assignment | Later | None:
        for kind, waiting in list(self._waiting.items()):
            if placed := self._place(waiting, idle):
                del self._waiting[kind]
                return placed
        ready = self._requests.keys() - self._skipped - self._waiting.keys()
        free = ready & self._kinds_with_room()
        if not free and self._waiting:
            return self._wait(idle)
        # first a trial that can start now, else one that waits for room
        proposal = self._propose_on(free or ready)
        if isinstance(proposal, Later) and free < ready:
            proposal = self._propose_on(ready)
        if isinstance(proposal, Later) and self._waiting:
            return self._wait(idle)
        if isinstance(proposal, Later) and not self._running:
            self._driver.exhaust(NoPlanForNodes())
            return self.propose(idle)
        if not isinstance(proposal, Assignment):
            return proposal
        if placed := self._place(proposal, idle):
            return placed
        self._waiting[proposal.request.plan.accelerator] = proposal
        return self.propose(idle)

    def _propose_on(self, kinds: Set[str]) -> Assignment | Later | None:
        return self._driver.propose(kinds=None if kinds == self._requests.keys() else kinds)

    def _place(self, assignment: Assignment, idle: Sequence[Placement]) -> Assignment | None:
        plan, running, up = assignment.request.plan, list(self._running.values()), self._up()
        usable = nodes_with_accelerator(up, plan.accelerator)
        requests = [one for kind, one in self._requests.items() if kind not in self._skipped]
        if assignment.request.validation:  # it runs alone
            requests = [replace(self._requests[plan.accelerator], groups=1)]
        self._nodes.request_capacity(
            [shortfall(request, up, [*running, *idle]) for request in requests]
        )
        avoided = self._avoided_nodes.get(plan.key, frozenset[str]())
        preferred = [node for node in usable if node.id not in avoided]
        decision = avoided and assign(plan, preferred, running, idle, share=self._share)
        decision = decision or assign(plan, usable, running, idle, share=self._share)
        if decision is None:
            return None
        placement = decision.placement
        self._waiting_since.pop(plan.accelerator, None)
        self._running[assignment.request.number] = placement
        chosen = (node for node in usable if node.id in placement.nodes)
        nodes = sorted(chosen, key=lambda node: node.id)
        self._names |= {node.id: node.name for node in nodes}
        return replace(
            assignment,
            placement=placement,
            evicted=decision.evicted,
            addresses=tuple((node.id, node.address) for node in nodes),
        )

    def conclude(self, report: TrialReport) -> None:
        placement = self._running.pop(report.number)
        plan = self._driver.plan_of(report.number)
        if not report.lost:
            if failure_decision(report.outcome).retry:
                self._avoided_nodes[plan.key] = placement.nodes
            self._driver.conclude(report)
            return
        self._losses[plan.key] += 1
        self._lost_at |= dict.fromkeys(report.lost, self._clock())
        loss = NodesLost(nodes=tuple(self._names.get(node, node) for node in report.lost))
        if self._losses[plan.key] <= MAX_NODE_LOSSES:
            self._driver.interrupt(report.number, loss)
        else:
            note = PlanBlamed(trial=report.number, loss=loss)
            self._driver.conclude(replace(report, notes=(*report.notes, note)))

    def lose(self, number: int, notes: Sequence[Note] = ()) -> None:
        self._running.pop(number, None)
        self._driver.lose(number, notes)

    def _kinds_with_room(self) -> set[str]:
        used = {node for placement in self._running.values() for node in placement.nodes}
        free = [node for node in self._up() if self._share or node.id not in used]
        return {kind for kind in self._requests if nodes_with_accelerator(free, kind)}

    def _up(self) -> tuple[Node, ...]:
        """Returns the nodes that are up, without those just lost, which may still be listed."""
        now = self._clock()
        return tuple(
            node
            for node in self._nodes.up()
            if now - self._lost_at.get(node.id, -inf) > _NOTICE_SECONDS
        )

    def _wait(self, idle: Sequence[Placement]) -> Assignment | Later | None:
        busy = {self._driver.plan_of(number).accelerator for number in self._running}
        for kind, waiting in list(self._waiting.items()):
            if kind not in busy and self._has_timed_out(waiting):
                del self._waiting[kind]
                self._give_up(waiting)
                return self.propose(idle)
        return Later()

    def _has_timed_out(self, waiting: Assignment) -> bool:
        now, plan = self._clock(), waiting.request.plan
        if plan.accelerator not in self._waiting_since:
            self._waiting_since[plan.accelerator] = now
            room = missing_room(plan, self._up(), self._wait_seconds)
            self._driver.note(TrialWaits(trial=waiting.request.number, room=room))
        return now - self._waiting_since[plan.accelerator] >= self._wait_seconds

    def _give_up(self, waiting: Assignment) -> None:
        number, plan = waiting.request.number, waiting.request.plan
        room = missing_room(plan, self._up(), self._wait_seconds)
        self._skipped.add(plan.accelerator)
        if waiting.request.validation or self._skipped == self._requests.keys():
            self._driver.give_up(number, room)
        else:
            self._driver.note(PlansLeftOut(room=room))
            self._driver.interrupt(number, room, retry=False)
