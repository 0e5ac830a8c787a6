"""The sweep's main loop: inputs come in, `core.handle` decides, instructions are carried out."""

from __future__ import annotations

import contextlib
import operator
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import TypeVar, final

from orchestrator.core.cluster import AbstractCluster
from orchestrator.core.controller_state import Phase
from orchestrator.core.events import (
    Event,
    GroupStarted,
    Noted,
    SweepEnded,
    TrialEnded,
    TrialStarted,
)
from orchestrator.core.handle import handle, start
from orchestrator.core.inputs import (
    DriverStarted,
    FinalistsChosen,
    Input,
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
from orchestrator.core.notes import ForecastsEnded, Message, Note
from orchestrator.core.reasons import ClusterSilent
from orchestrator.core.records import closed_record
from orchestrator.core.state import AbstractCallback, SweepState, advance
from orchestrator.forecast.forecaster import AbstractForecasts, NoForecasts
from orchestrator.study.study import Study
from search_spaces.errors import StudyError
from search_spaces.spec.redaction import redact_texts
from search_spaces.trial import Cancelled, Stopped

Forecast = TypeVar("Forecast")
Decided = Callable[[DriverStarted | Input, Sequence[Instruction]], None]


def steady_clock() -> Callable[[], float]:
    """Returns a clock of seconds since the epoch that never jumps, whatever the system's does."""
    offset = time.time() - time.monotonic()
    return lambda: offset + time.monotonic()


@final
class Controller:
    """Carries out the decisions of `core`, and tells study, cluster and callbacks.

    Attributes:
        state: What decides, after the last input.
        sweep: What the callbacks know.
        error: The first error of the study; no trial is started after it.
    """

    def __init__(
        self,
        started: DriverStarted,
        study: Study,
        cluster: AbstractCluster,
        callbacks: Sequence[AbstractCallback] = (),
        forecasts: AbstractForecasts | None = None,
        clock: Callable[[], float] | None = None,
        decided: Decided | None = None,
        secrets: Collection[str] = (),
    ) -> None:
        """Starts the sweep: closes trials that an earlier driver left running.

        Args:
            started: The first input.
            study: Holds all results.
            cluster: Runs the trials.
            callbacks: Receive the events.
            forecasts: Forecasts of plans; None: none.
            clock: Returns the seconds since the epoch.
            decided: Receives each input that changes something, and what follows from it.
            secrets: Values that no text may repeat. They are taken out of what comes from outside,
                so that neither the study nor a callback has them.
        """
        self._secrets = secrets
        self._study = study
        self._cluster = cluster
        self._callbacks = tuple(callbacks)
        self._forecasts = forecasts or NoForecasts()
        self._clock = clock or steady_clock()
        self._decided = decided
        self.error: StudyError | None = None
        self.state, instructions = start(started)
        self.sweep = self.state.sweep
        if decided is not None:
            decided(started, instructions)
        study.say_through(lambda text: self.note(Message(text=text)))
        for instruction in instructions:
            self._carry_out(instruction)
        study.say_notices()  # now that the sweep has begun

    def receive(self, given: Input) -> None:
        """Handles an input from outside, then starts what can start now."""
        if isinstance(given, StopRequested):
            self._finish_interrupted(given.cause)
        if isinstance(given, TrialFinished):
            given = self._with_forecast(given)
        self._process(replace(redact_texts(given, self._secrets), at=self._clock()))
        self.tick()

    def tick(self) -> None:
        """Lets time pass: starts what can start now, and looks at what waits or is overdue."""
        nodes = self.state.nodes if self.state.ended else self._cluster.nodes()
        if nodes != self.state.nodes:
            self._process(NodesChanged(nodes=nodes, at=self._clock()))
        has_written = True
        while has_written:  # a result that was written may let more start
            has_written = self._process(Tick(at=self._clock()))

    def give_up(self, cause: Stopped) -> None:
        """Closes running trials and the sweep, whose cluster is gone; no plan is blamed.

        For another thread than the loop's, which may be in a call that does not come back. The
        study goes first, and other drivers may have it then, since callbacks may have to wait.
        """
        now = self._clock()
        closed = [_closed(trial, cause, now) for trial in self.sweep.running]
        for each in closed:
            with contextlib.suppress(StudyError):
                self._study.abandon(each.record.number)
        self._study.release()
        if self.sweep.ended is not None:  # groups were all that was left to end
            return
        ended = SweepEnded(reason=ClusterSilent(), at=now, untried=len(self._study.untried()))
        for closing in closed:
            self._announce(closing)
        self._announce(ended)

    def note(self, *notes: Note) -> None:
        """Announces notes for the user."""
        for note in notes:
            said = redact_texts(note, self._secrets)
            self._announce(Noted(note=said, at=self._clock()))

    def _with_forecast(self, report: TrialFinished) -> TrialFinished:
        """Adds a forecast to the report of a trial that started without one.

        It still is a forecast: the calibration has not seen this result.
        """
        trial = self.state.running(report.number)
        if trial is None or trial.validation or trial.forecast is not None:
            return report
        forecast = self._forecasts.expectation(trial.plan, self.sweep)
        return replace(report, forecast=self._noting_problems(forecast))

    def _process(self, given: Input) -> bool:
        """Handles an input and all answers that follow.

        Returns:
            True if the study was written, without an error.
        """
        inputs, wrote = deque([given]), False
        while inputs:
            given = inputs.popleft()
            before = self.state
            self.state, instructions = handle(before, given)
            if self._decided is not None and (instructions or self.state != before):
                self._decided(given, instructions)
            for instruction in instructions:
                answer = self._attempt(instruction)
                wrote |= isinstance(instruction, Store | Abandon)
                if answer is not None:
                    inputs.append(answer)
        return wrote and self.error is None

    def _attempt(self, instruction: Instruction) -> Input | None:
        """Carries out an instruction; after an error of the study, no trial is opened."""
        if self.error is not None and isinstance(instruction, Propose | Open | End):
            return None
        try:
            return self._carry_out(instruction)
        except StudyError as error:
            self.error = self.error or error
            return StudyUnavailable(at=self._clock())

    def _finish_interrupted(self, cause: Stopped) -> None:
        """Closes trials, and the sweep, whose end a signal kept from the study or the callbacks."""
        under_way = {trial.number for trial in self.state.sweep.running}
        for trial in self.sweep.running:
            if trial.number not in under_way:
                ended = _closed(trial, cause, self._clock())
                self._attempt(Abandon(number=trial.number, ended=ended))
        if self.state.phase is Phase.DONE and self.sweep.ended is None:
            self._attempt(End(reason=cause, at=self._clock()))

    def _carry_out(self, instruction: Instruction) -> Input | None:
        """Carries out an instruction, and returns the answer if there is one."""
        match instruction:
            case Propose():
                return self._propose()
            case Open():
                return self._open(instruction)
            case ChooseFinalists(count=count):
                return self._choose_finalists(count)
            case Store() | Abandon() | End() | Announce():
                self._tell(instruction)
            case Run(group=group) | Release(group=group) | Dismiss(group=group):
                self._cluster.send(group, instruction)
            case StartGroup(group=group):
                self._cluster.start_group(group)
            case Kill(group=group):
                self._cluster.kill(group)
            case RequestCapacity(need=need):
                self._cluster.request_capacity(need)
        return None

    def _propose(self) -> PlanProposed:
        before = self._clock()
        prior = self._noting_problems(self._forecasts.prior(self.sweep))
        proposed = self._study.propose(prior)
        now = self._clock()
        return replace(proposed, ask_seconds=now - before, at=now)

    def _choose_finalists(self, count: int) -> FinalistsChosen:
        prior = self._noting_problems(self._forecasts.prior(self.sweep))
        return FinalistsChosen(plans=self._study.leaders(count, prior), at=self._clock())

    def _open(self, opening: Open) -> TrialOpened:
        number = self._study.ask(opening.plan, opening.reason)
        forecast = self._forecasts.expectation(opening.plan, self.sweep)
        forecast = self._noting_problems(forecast)
        return TrialOpened(number=number, forecast=forecast, at=self._clock())

    def _tell(self, instruction: Store | Abandon | End | Announce) -> None:
        """Changes the study, then tells the callbacks."""
        match instruction:
            case Store(ended=ended):
                self._store(ended)
            case Abandon(number=number, ended=abandoned):
                self._abandon(number, abandoned)
            case End():
                self._end(instruction)
            case Announce(event=event):
                self._announce(event)

    def _store(self, ended: TrialEnded) -> None:
        if ended.record.validation:
            self._study.keep_validation(ended.record)
        else:
            self._study.tell(ended.record)
        self._announce(ended)

    def _abandon(self, number: int, ended: TrialEnded | None) -> None:
        has_result = ended is not None and not isinstance(ended.record.outcome, Cancelled)
        self._study.abandon(number, ended.record if ended and has_result else None)
        if ended is not None:
            self._announce(ended)

    def _end(self, end: End) -> None:
        prior = self._noting_problems(self._forecasts.prior(self.sweep))
        ended = SweepEnded(
            reason=end.reason,
            at=end.at,
            regret_bound=self._study.regret_bound(prior),
            untried=len(self._study.untried()),
        )
        self._study.keep_end(ended)
        self._announce(ended)

    def _announce(self, event: Event) -> None:
        self.sweep = _sharing(advance(self.sweep, event), self.state.sweep)
        for callback in self._callbacks:
            callback.on_event(event, self.sweep)
        if isinstance(event, GroupStarted):
            self.note(*self._study.transferred(event.fingerprint))

    def _noting_problems(self, forecast: Forecast) -> Forecast:
        if problem := self._forecasts.problem():
            self.note(ForecastsEnded(error=problem))
        return forecast


def _closed(trial: TrialStarted, cause: Stopped, at: float) -> TrialEnded:
    record = closed_record(trial.number, trial.plan, Cancelled(cause=cause), trial.reason, at=at)
    return TrialEnded(record=replace(record, validation=trial.validation), at=at)


def _sharing(sweep: SweepState, decided: SweepState) -> SweepState:
    """Returns a sweep with the very records of another, if they are equal.

    What is derived from them, such as the best plan, is then derived once for both.
    """
    for ours, theirs in (
        (sweep.records, decided.records),
        (sweep.validations, decided.validations),
    ):
        if len(ours) != len(theirs) or not all(map(operator.is_, ours, theirs)):
            return sweep
    return replace(sweep, records=decided.records, validations=decided.validations)
