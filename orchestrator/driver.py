"""The shell around what the core decides: asks, tells, and passes the word on."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path

from orchestrator.core.budget import (
    Stop,
    next_action,
    proof_deadline_seconds,
    rival,
    too_dear,
    trial_deadline_seconds,
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
from orchestrator.core.failures import DRIVER_DIED_TWICE, RUNNER_DIED, reaction_to
from orchestrator.core.messages import AbstractDriver, Assignment, Later, TrialReport
from orchestrator.core.placement import Placement
from orchestrator.core.state import SweepState, advance, begin
from orchestrator.forecast.forecaster import AbstractForecasts, NoForecasts
from orchestrator.study.study import Interrupted, Study
from orchestrator.tracking.callback import AbstractListener
from search_spaces.expectation import Expectation
from search_spaces.facts import ClusterFacts
from search_spaces.forecast.prospects import Prospects
from search_spaces.outcome import Cancelled, Outcome, sentence
from search_spaces.plan import Plan
from search_spaces.record import Record, closed
from search_spaces.request import TrialRequest


class Driver(AbstractDriver):
    """Carries out what the core decides: asks the study, tells it, and tells who listens."""

    def __init__(
        self,
        study: Study,
        cluster: ClusterFacts,
        listeners: Sequence[AbstractListener],
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
        self._retries: list[tuple[Interrupted, str]] = []  # what is run once more, and why
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
        """The next trial, or a proof when the core says that it is enough; None after that.

        A proof, which has the cluster to itself, waits until no trial is under way. If given,
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
        if stop := too_dear(self.state, proposed.saving, proposed.seconds):
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
        """Opens a trial in the study and hands it out."""
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
        return Assignment(
            request=TrialRequest(
                number=asked.number,
                plan=plan,
                spec=self.state.for_workers,
                rival=rival(self.state, plan),
            ),
            device=self._cluster.device,
            deadline_seconds=deadline_seconds,
            folder=str(Path.cwd()),
        )

    def _conclude_search(self, reason: str, now: float) -> Assignment | Later | None:
        """What is left to prove, then the end. No trial follows, whatever a proof shows."""
        self._searched = reason
        if self.state.running:
            return Later()
        if (trial := self.state.to_prove) is not None:
            return self._prove(trial, now)
        self.end(reason)
        return None

    def _prove(self, trial: Record, now: float) -> Assignment:
        deadline_seconds = proof_deadline_seconds(self.state, trial)
        self._emit(
            TrialStarted(
                number=trial.number,
                plan=trial.plan,
                why=f"proof of trial {trial.number}",
                deadline_seconds=deadline_seconds,
                at=now,
                proof=True,
            )
        )
        return Assignment(
            request=TrialRequest(
                number=trial.number,
                plan=trial.plan,
                spec=self.state.for_workers,
                # the first rank may write a checkpoint while all others wait for it
                collective_seconds=deadline_seconds,
                proof=True,
            ),
            device=self._cluster.device,
            deadline_seconds=deadline_seconds,
            folder=str(Path.cwd()),
            fresh=True,
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
            forecast = trial.forecast or (None if trial.proof else self._expected(trial.plan))
            handed_out = max(report.started_at - trial.at, 0.0)  # clocks of two hosts may differ
            self._tell(report.record_of(trial, forecast), handed_out + report.workers_seconds)
        self.note(*report.notes)

    def lose(self, number: int, notes: Sequence[str] = ()) -> None:
        """The actor that ran the trial is gone, with its group."""
        trial = self._running(number)
        if not self._runs_again(trial, RUNNER_DIED):
            record = closed(number, trial.plan, RUNNER_DIED, trial.why, at=self._clock())
            self._tell(replace(record, forecast=trial.forecast, proof=trial.proof))
        self.note(*notes)

    def _runs_again(self, trial: TrialStarted, outcome: Outcome) -> bool:
        """Closes a trial that is run once more, if its outcome asks for that."""
        second = trial.proof or trial.retry_of is not None
        if not reaction_to(outcome, second=second).again:
            return False
        self.interrupt(trial.number, f"trial {trial.number} {sentence(outcome)}")
        return True

    def plan_of(self, number: int) -> Plan:
        """The plan of a trial under way."""
        return self._running(number).plan

    def interrupt(self, number: int, reason: str, *, again: bool = True) -> None:
        """Closes a trial that ended by no doing of its plan's, which is run once more."""
        trial, self._searched = self._running(number), None  # which may have counted on it
        if again and not trial.proof:  # one that is not there is asked for again anyway
            left = Interrupted(number=number, plan=trial.plan, retry_of=None)
            self._retries.append((left, reason))
        self._close(trial, reason)

    def exhaust(self, reason: str) -> None:
        """Lets no trial follow those that are under way; a proof may."""
        self._searched = reason

    def give_up(self, number: int, reason: str) -> None:
        """Closes a trial that cannot be run; none follows."""
        trial = self._running(number)
        self._close(trial, reason)
        self._searched = reason
        if trial.proof:
            self.end(reason)

    def cancel(self, reason: str) -> None:
        """Closes what is under way, so that the next driver runs it again, and ends."""
        for trial in self.state.running:
            self._close(trial, reason)
        self.end(reason)

    def _close(self, trial: TrialStarted, reason: str) -> None:
        """Closes a trial without an outcome."""
        self._study.abandon(trial.number)  # nothing if it is a proof: its trial has ended
        now, outcome = self._clock(), Cancelled(detail=reason)
        record = closed(trial.number, trial.plan, outcome, trial.why, at=now)
        self._emit(TrialEnded(record=replace(record, proof=trial.proof), at=now))

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
                left=self._study.left(self._prospects()),
                untried=len(self._study.untried()),
            )
            self._study.keep_end(ended)
            self._emit(ended)

    def _prospects(self) -> Prospects | None:
        prospects = self._forecasts.prospects(self.state)
        self._note_problem()
        return prospects

    def _expected(self, plan: Plan) -> Expectation | None:
        forecast = self._forecasts.expectation(plan, self.state)
        self._note_problem()
        return forecast

    def _note_problem(self) -> None:
        if problem := self._forecasts.problem():
            self.note(problem)

    def _running(self, number: int) -> TrialStarted:
        return next(trial for trial in self.state.running if trial.number == number)

    def _tell(self, record: Record, waited_seconds: float | None = None) -> None:
        """Tells the study, then everybody else."""
        if record.proof:
            self._study.keep_proof(record)
        else:
            self._study.tell(record)
        self._emit(TrialEnded(record=record, at=self._clock(), waited_seconds=waited_seconds))

    def _emit(self, event: Event) -> None:
        self.state = advance(self.state, event)
        for listener in self._listeners:
            listener.on_event(event, self.state)
