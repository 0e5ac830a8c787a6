"""The shell around what the core decides: asks, tells, and passes the word on."""

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
from orchestrator.core.placement import (
    AbstractNodes,
    CapacityRequest,
    Node,
    Placement,
    assign,
    capacity_words,
    on_kind,
    shortfall,
)
from orchestrator.core.state import SweepState, advance, begin
from orchestrator.forecast.forecaster import AbstractForecasts, NoForecasts
from orchestrator.study.study import InterruptedTrial, Study
from orchestrator.tracking.callback import AbstractCallback
from search_spaces.costs.forecast import SearchPrior
from search_spaces.facts import ClusterFacts
from search_spaces.plan import Plan
from search_spaces.trial import (
    Cancelled,
    Outcome,
    PlanForecast,
    Record,
    TrialRequest,
    closed,
    sentence,
)

Forecast = TypeVar("Forecast")
_NOTICE_SECONDS = 120.0  # after which a cluster knows that a node is gone; or it was not
MOST_LOSSES = 2  # of nodes under one plan, after which it is taken to be the plan that kills them


class Driver(AbstractDriver):
    """Carries out what the core decides: asks the study, tells it, and tells who listens."""

    def __init__(
        self,
        study: Study,
        cluster: ClusterFacts,
        listeners: Sequence[AbstractCallback],
        begun: SweepStarted,
        clock: Callable[[], float] = time.time,
        forecasts: AbstractForecasts | None = None,
    ) -> None:
        self.state: SweepState = begin(begun)
        self._study = study
        self._cluster = cluster
        self._listeners = listeners
        self._clock = clock
        self._forecasts = forecasts or NoForecasts()
        self._stopped = False
        self._searched: str | None = None  # why no more trials are handed out
        self._retries: list[tuple[InterruptedTrial, str]] = []  # what is run once more, and why
        for listener in listeners:
            listener.on_event(begun, self.state)

    def repair(self) -> None:
        """Takes up what an earlier driver left open: once more, or blamed if it was that.

        A plan that the space of today does not hold is dropped.
        """
        for left in self._study.interrupted():
            if left.retry_of is None:
                self._study.abandon(left.number)
                if left.plan in self.state.space.candidates:
                    why = f"trial {left.number} was under way when its driver died"
                    self._retries.append((left, why))
                continue
            record = closed(
                left.number, left.plan, DRIVER_DIED_TWICE, "run once more", at=self._clock()
            )
            self._study.abandon(left.number, record)
            self._emit(TrialEnded(record=record, at=self._clock()))

    def propose(
        self, _: Sequence[Placement] = (), kinds: Collection[str] | None = None
    ) -> Assignment | Later | None:
        """The next trial, or a validation when the core says that it is enough; None after that.

        A validation, which has the cluster to itself, waits until no trial is under way. If given,
        `kinds` are those of which nodes are free, while there are none of the others.
        """
        if self._stopped:
            return None
        now = self._clock()
        if self._searched is not None:
            return self._conclude_search(self._searched, now)
        action = next_action(self.state, now, len(self._study.untried()))
        if isinstance(action, Stop):
            return self._conclude_search(action.reason, now)
        if self._retries:
            left, why = self._retries.pop(0)
            return self._begin(left.plan, why, now, retry_of=left.number)
        if action.plan is not None:
            return self._begin(action.plan, action.why, now)
        if not self._study.untried(kinds):
            return Later()
        proposed = self._study.propose(self._prospects(), kinds)
        if stop := not_worth_it(self.state, proposed.saving, proposed.seconds):
            return self._conclude_search(stop.reason, now) if kinds is None else Later()
        taken = max(self._clock() - now, 0.0)
        return self._begin(proposed.plan, proposed.why, now, ask_seconds=taken)

    def _begin(
        self,
        plan: Plan,
        why: str,
        now: float,
        *,
        retry_of: int | None = None,
        ask_seconds: float | None = None,
    ) -> Assignment:
        asked = self._study.ask(plan, why, retry_of=retry_of)
        forecast = self._expected(plan)
        deadline_seconds = trial_deadline_seconds(self.state, now, plan, forecast)
        started = TrialStarted(
            number=asked.number,
            plan=plan,
            why=why,
            deadline_seconds=deadline_seconds,
            at=now,
            forecast=forecast,
            ask_seconds=ask_seconds,
            retry_of=retry_of,
        )
        self._emit(started)
        request = TrialRequest(
            number=asked.number,
            plan=plan,
            spec=self.state.for_workers,
            incumbent=incumbent(self.state, plan),
        )
        return self._assignment(request, deadline_seconds)

    def _conclude_search(self, reason: str, now: float) -> Assignment | Later | None:
        """What is left to validate, then the end. No trial follows, whatever a validation shows."""
        self._searched = reason
        if self.state.running:
            return Later()
        if (trial := self.state.to_validate) is not None:
            return self._validate(trial, now)
        self.end(reason)
        return None

    def _validate(self, trial: Record, now: float) -> Assignment:
        deadline_seconds = validation_deadline_seconds(self.state, trial)
        self._emit(
            TrialStarted(
                number=trial.number,
                plan=trial.plan,
                why=f"validation of trial {trial.number}",
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
        """Tells the study, then everybody else."""
        if report.fingerprint is not None and report.fingerprint != self.state.fingerprint:
            self._emit(
                GroupStarted(
                    world_size=self._running(report.number).plan.world_size,
                    fingerprint=report.fingerprint,
                    at=self._clock(),
                )
            )
            self.note(*self._study.sources(report.fingerprint))
        trial = self._running(report.number)
        if not self._runs_again(trial, report.outcome):
            # what the trial itself taught is in no record yet: late as it is, this was expected
            forecast = trial.forecast or (None if trial.validation else self._expected(trial.plan))
            handed_out = max(report.started_at - trial.at, 0.0)  # clocks of two hosts may differ
            self._tell(report.record_of(trial, forecast), handed_out + report.workers_seconds)
        self.note(*report.notes)

    def lose(self, number: int, notes: Sequence[str] = ()) -> None:
        """The actor that ran the trial is gone, with its group."""
        trial = self._running(number)
        if not self._runs_again(trial, RUNNER_DIED):
            record = closed(number, trial.plan, RUNNER_DIED, trial.why, at=self._clock())
            self._tell(replace(record, forecast=trial.forecast, validation=trial.validation))
        self.note(*notes)

    def _runs_again(self, trial: TrialStarted, outcome: Outcome) -> bool:
        """Closes a trial that is run once more, if its outcome asks for that."""
        second = trial.validation or trial.retry_of is not None
        if not failure_decision(outcome, second=second).again:
            return False
        self.interrupt(trial.number, f"trial {trial.number} {sentence(outcome)}")
        return True

    def plan_of(self, number: int) -> Plan:
        """The plan of a trial under way."""
        return self._running(number).plan

    def interrupt(self, number: int, reason: str, *, again: bool = True) -> None:
        """Closes a trial that ended by no doing of its plan's, which is run once more."""
        trial, self._searched = self._running(number), None  # which may have counted on it
        if again and not trial.validation:  # one that is not there is asked for again anyway
            left = InterruptedTrial(number=number, plan=trial.plan, retry_of=None)
            self._retries.append((left, reason))
        self._close(trial, reason)

    def exhaust(self, reason: str) -> None:
        """Lets no trial follow those that are under way; a validation may."""
        self._searched = reason

    def give_up(self, number: int, reason: str) -> None:
        """Closes a trial that cannot be run; none follows."""
        trial = self._running(number)
        self._close(trial, reason)
        self._searched = reason
        if trial.validation:
            self.end(reason)

    def cancel(self, reason: str) -> None:
        """Closes what is under way, so that the next driver runs it again, and ends."""
        for trial in self.state.running:
            self._close(trial, reason)
        self.end(reason)

    def _close(self, trial: TrialStarted, reason: str) -> None:
        self._study.abandon(trial.number)  # nothing if it is a validation: its trial has ended
        now, outcome = self._clock(), Cancelled(detail=reason)
        record = closed(trial.number, trial.plan, outcome, trial.why, at=now)
        self._emit(TrialEnded(record=replace(record, validation=trial.validation), at=now))

    def note(self, *texts: str) -> None:
        """Passes on what a person should read."""
        for text in texts:
            self._emit(Noted(text=text, at=self._clock()))

    def end(self, reason: str) -> None:
        """Says that the sweep is over, once, and what may be left to find."""
        if not self._stopped:
            self._stopped = True
            ended = SweepEnded(
                reason=reason,
                at=self._clock(),
                left=self._study.regret_bound(self._prospects()),
                untried=len(self._study.untried()),
            )
            self._study.keep_end(ended)
            self._emit(ended)

    def _prospects(self) -> SearchPrior | None:
        return self._noting_problems(self._forecasts.prospects(self.state))

    def _expected(self, plan: Plan) -> PlanForecast | None:
        return self._noting_problems(self._forecasts.expectation(plan, self.state))

    def _noting_problems(self, forecast: Forecast) -> Forecast:
        if problem := self._forecasts.problem():
            self.note(problem)
        return forecast

    def _running(self, number: int) -> TrialStarted:
        return next(trial for trial in self.state.running if trial.number == number)

    def _tell(self, record: Record, waited_seconds: float | None = None) -> None:
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
    """A driver whose trials know on which nodes they run.

    What has been decided waits until there is room for it. A trial whose node was lost is run
    again. Nodes that all groups together need are kept, those that are missed are asked for; a
    trial without any waits for a bounded time.
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
        """Nobody is anywhere.

        Args:
            driver: Who decides.
            nodes: What there is.
            wanted: For whom there has to be room at the same time, on each kind of nodes that plans
                tell apart, and whether groups share nodes.
            wait_seconds: How long to wait for nodes that are not there.
            clock: Seconds since the epoch.
        """
        self._driver = driver
        self._nodes = nodes
        self._wanted = {one.accelerator: one for one in wanted}
        self._share = any(one.share for one in wanted)
        self._wait_seconds = wait_seconds
        self._clock = clock
        self._running: dict[int, Placement] = {}
        self._waiting: dict[str, Assignment] = {}  # decided, without room; by kind of nodes
        self._missed_since: dict[str, float] = {}  # room for those, which nobody has
        self._left_out: set[str] = set()  # kinds whose nodes did not come
        self._lost: Counter[str] = Counter()  # nodes under trials of a plan, by its key
        self._shunned: dict[str, Set[str]] = {}  # where workers of a plan died, by its key
        self._gone: dict[str, float] = {}  # nodes that were lost, and when
        self._names: dict[str, str] = {}

    def propose(self, idle: Sequence[Placement] = ()) -> Assignment | Later | None:
        for kind, waiting in list(self._waiting.items()):
            if placed := self._placed(waiting, idle):
                del self._waiting[kind]
                return placed
        there = self._wanted.keys() - self._left_out
        ready = there - self._waiting.keys()
        free = ready & self._kinds_with_room()
        if not free and self._waiting:
            return self._wait(idle)
        given = self._decided(free or ready)
        if isinstance(given, Later) and free < ready:
            given = self._decided(ready)
        if isinstance(given, Later) and self._waiting:
            return self._wait(idle)
        if isinstance(given, Later) and not self._running:
            self._driver.exhaust("nothing is left to try on the nodes that are there")
            return self.propose(idle)
        if not isinstance(given, Assignment):
            return given
        if placed := self._placed(given, idle):
            return placed
        self._waiting[given.request.plan.accelerator] = given
        return self.propose(idle)

    def _decided(self, kinds: Set[str]) -> Assignment | Later | None:
        return self._driver.propose(kinds=None if kinds == self._wanted.keys() else kinds)

    def _placed(self, given: Assignment, idle: Sequence[Placement]) -> Assignment | None:
        """A trial with its nodes; None while there is no room for it."""
        plan, running, up = given.request.plan, list(self._running.values()), self._up()
        here = on_kind(up, plan.accelerator)
        wanted = [one for kind, one in self._wanted.items() if kind not in self._left_out]
        if given.request.validation:  # which runs alone
            wanted = [replace(self._wanted[plan.accelerator], groups=1)]
        self._nodes.want([shortfall(one, up, [*running, *idle]) for one in wanted])
        shunned = self._shunned.get(plan.key, frozenset[str]())
        others = [node for node in here if node.id not in shunned]
        found = shunned and assign(plan, others, running, idle, share=self._share)
        found = found or assign(plan, here, running, idle, share=self._share)
        if found is None:
            return None
        self._missed_since.pop(plan.accelerator, None)
        self._running[given.request.number] = found.placement
        there = sorted(
            (node for node in here if node.id in found.placement.nodes), key=lambda node: node.id
        )
        self._names |= {node.id: node.name for node in there}
        return replace(
            given,
            placement=found.placement,
            evicted=found.evicted,
            doors=tuple((node.id, node.door) for node in there),
        )

    def conclude(self, report: TrialReport) -> None:
        placement = self._running.pop(report.number)
        plan = self._driver.plan_of(report.number)
        if not report.lost:
            if failure_decision(report.outcome).again:
                self._shunned[plan.key] = placement.nodes
            self._driver.conclude(report)
            return
        self._lost[plan.key] += 1
        self._gone |= dict.fromkeys(report.lost, self._clock())
        names = ", ".join(self._names.get(node, node) for node in report.lost)
        gone = f"node {names} was lost" if len(report.lost) == 1 else f"nodes {names} were lost"
        if self._lost[plan.key] <= MOST_LOSSES:
            self._driver.interrupt(report.number, f"{gone} under trial {report.number}")
        else:
            note = f"{gone} under this plan, as before: it is taken to be the plan"
            self._driver.conclude(replace(report, notes=(*report.notes, note)))

    def lose(self, number: int, notes: Sequence[str] = ()) -> None:
        self._running.pop(number, None)
        self._driver.lose(number, notes)

    def _kinds_with_room(self) -> set[str]:
        """Kinds with a node that nobody runs on, or where groups share."""
        taken = {node for there in self._running.values() for node in there.nodes}
        free = [node for node in self._up() if self._share or node.id not in taken]
        return {kind for kind in self._wanted if on_kind(free, kind)}

    def _up(self) -> tuple[Node, ...]:
        """Nodes that are up; of one that was just lost the cluster may not know yet."""
        now = self._clock()
        return tuple(
            node
            for node in self._nodes.up()
            if now - self._gone.get(node.id, -inf) > _NOTICE_SECONDS
        )

    def _wait(self, idle: Sequence[Placement]) -> Assignment | Later | None:
        """Keeps what has no room, until it has or nobody believes in it any longer."""
        busy = {self._driver.plan_of(number).accelerator for number in self._running}
        for kind, given in list(self._waiting.items()):
            if kind not in busy and self._is_past_waiting(given):
                del self._waiting[kind]
                self._give_up(given)
                return self.propose(idle)
        return Later()

    def _is_past_waiting(self, given: Assignment) -> bool:
        """Whether room was missed for too long while nobody has it; begins to count."""
        now, plan = self._clock(), given.request.plan
        if plan.accelerator not in self._missed_since:
            self._missed_since[plan.accelerator] = now
            self._driver.note(
                f"trial {given.request.number} waits for room for {_ranks(plan)}, up to"
                f" {self._wait_seconds / 60:g} minutes: there is {capacity_words(self._up())}"
            )
        return now - self._missed_since[plan.accelerator] >= self._wait_seconds

    def _give_up(self, given: Assignment) -> None:
        """Ends the sweep, or leaves out the kind of nodes if there are others."""
        number, plan = given.request.number, given.request.plan
        reason = (
            f"there was no room for {_ranks(plan)} for {self._wait_seconds / 60:g} minutes"
            f" (cluster.wait_minutes): there is {capacity_words(self._up())}"
        )
        self._left_out.add(plan.accelerator)
        if given.request.validation or self._left_out == self._wanted.keys():
            self._driver.give_up(number, reason)
        else:
            self._driver.note(f"plans for {plan.accelerator} are left out: {reason}")
            self._driver.interrupt(number, reason, again=False)


def _ranks(plan: Plan) -> str:
    ranks = "1 rank" if plan.world_size == 1 else f"{plan.world_size} ranks"
    where = f"{ranks} on {plan.accelerator}" if plan.accelerator else ranks
    return where if plan.tensor == 1 else f"{where}, {plan.tensor} or more of them on each node"
