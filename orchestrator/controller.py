"""The sweep's main loop: inputs come in, `core.handle` decides, instructions are carried out."""

import contextlib
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import TypeVar, final

from orchestrator.core import inputs
from orchestrator.core.cluster import AbstractCluster
from orchestrator.core.events import Event, GroupStarted, SweepEnded, TrialEnded
from orchestrator.core.handle import handle, start
from orchestrator.core.instructions import (
    Abandon,
    Announce,
    ChooseFinalists,
    Closing,
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
from orchestrator.core.state import AbstractCallback
from orchestrator.forecast.forecaster import SweepForecasts
from orchestrator.journal import Journal
from orchestrator.search.optuna_samplers import proposer_of
from orchestrator.search.transfer import EarlierStudy, transfer_note
from orchestrator.study.study import Study
from search_spaces.costs.forecast import SearchPrior
from search_spaces.errors import StudyError
from search_spaces.safety.redaction import redact_texts
from search_spaces.trial import Cancelled, Stopped

Forecast = TypeVar("Forecast")
_TICK_SECONDS = 1.0


def steady_clock() -> Callable[[], float]:
    """Returns a clock of seconds since the epoch that never jumps, whatever the system's does."""
    offset = time.time() - time.monotonic()
    return lambda: offset + time.monotonic()


@final
class Controller:
    """Carries out the decisions of `core`: tells study, cluster, search and callbacks.

    Making one starts the sweep, and closes trials that an earlier driver left running.

    Args:
        started: The first input.
        study: Holds all results.
        cluster: Runs the trials.
        callbacks: Receive the events.
        forecasts: Forecasts of plans; None: none.
        clock: Returns the seconds since the epoch.
        journal: Records inputs, decisions and events; None: none does.
        secrets: Values that are taken out of all texts that come from outside.
        earlier: Other studies of the same job, whose trials the search learns from.

    Attributes:
        state: The only state of the sweep, after the last input.
        error: The first error of the study; no trial is started after it.
        is_stopped: True once a signal or a fault stopped the sweep; groups may still run.
    """

    def __init__(
        self,
        started: inputs.DriverStarted,
        study: Study,
        cluster: AbstractCluster,
        callbacks: Sequence[AbstractCallback] = (),
        forecasts: SweepForecasts | None = None,
        clock: Callable[[], float] | None = None,
        journal: Journal | None = None,
        secrets: Collection[str] = (),
        earlier: Sequence[EarlierStudy] = (),
    ) -> None:
        self._study = study
        self._cluster = cluster
        self._journal = journal or Journal()
        self._callbacks = (self._journal, *callbacks)
        self._forecasts = forecasts or SweepForecasts()
        self._clock = clock or steady_clock()
        self._secrets, self._earlier = secrets, earlier
        sweep = started.sweep
        self._search = proposer_of(sweep.space, sweep.spec, len(sweep.records), earlier)
        self._inbox: SimpleQueue[inputs.Input] = SimpleQueue()
        self._pending: deque[Instruction] = deque()
        self._has_written = self.is_stopped = False
        self.error: StudyError | None = None
        started = replace(started, notes=redact_texts(started.notes, secrets))
        self.state, instructions = start(started)
        self._journal.record(started, instructions, sweep.study)
        study.retries.say = lambda text: self.note(Message(text=text))
        for instruction in instructions:
            self._carry_out(instruction)
        self._journal.write()

    def run(self) -> None:
        """Runs the sweep until it is over and its groups have ended, or until it is stopped."""
        while not self._is_over:
            self.step(_TICK_SECONDS)

    def step(self, seconds: float = 0.0) -> None:
        """Handles an input from outside, if one comes in time, then new nodes, then a tick."""
        if (given := self._outside(seconds)) is not None:
            self._handle(given)
        nodes = self._cluster.nodes()
        if nodes != self.state.nodes and not self.state.ended:
            self._handle(inputs.NodesChanged(nodes=nodes, at=self._clock()))
        is_due = True
        while is_due:  # again once a result was stored, which may let more start
            self._has_written = False
            self._handle(inputs.Tick(at=self._clock()))
            is_due = self._has_written and self.error is None

    def _handle(self, given: inputs.Input) -> None:
        """Handles an input, then the answers to its instructions."""
        answers = deque[inputs.Input]([given])
        while answers:
            given = answers.popleft()
            self._pending.extend(self._decide(given))
            while self._pending:
                if (answer := self._attempt(self._pending.popleft())) is not None:
                    answers.append(answer)
            self._journal.write()

    def _decide(self, given: inputs.Input) -> tuple[Instruction, ...]:
        """Lets the core decide on an input, and records one that changes something."""
        before = self.state
        self.state, instructions = handle(before, given)
        if instructions or self.state != before:
            self._journal.record(given, instructions, before.sweep.study)
        return instructions

    def put(self, given: inputs.Input) -> None:
        """Adds an input from outside: from any thread, or from a signal's handler."""
        self._inbox.put(given)

    @property
    def _is_over(self) -> bool:
        return self.state.ended and (self.is_stopped or not self.state.groups)

    def _outside(self, seconds: float) -> inputs.Input | None:
        """Returns an input from outside with its time, a forecast, and without secrets."""
        try:
            given = self._inbox.get(timeout=seconds)
        except Empty:
            return None
        self.is_stopped |= isinstance(given, inputs.StopRequested)
        if isinstance(given, inputs.TrialFinished):
            given = self._with_forecast(given)
        return replace(redact_texts(given, self._secrets), at=self._clock())

    def _with_forecast(self, report: inputs.TrialFinished) -> inputs.TrialFinished:
        """Adds a forecast to the report of a trial that started without one.

        It still is a forecast: the calibration has not seen this result.
        """
        trial = self.state.running(report.number)
        if trial is None or trial.validation or trial.forecast is not None:
            return report
        forecast = self._forecasts.expectation(trial.plan, self.state.sweep)
        return replace(report, forecast=self._noting_problems(forecast))

    def _attempt(self, instruction: Instruction) -> inputs.Answer | None:
        """Carries out an instruction; after an error of the study, no trial is opened."""
        if self.error is not None and isinstance(instruction, Propose | Open | End):
            return None
        try:
            return self._carry_out(instruction)
        except StudyError as error:
            self.error = self.error or error
            unwritten = instruction.ended if isinstance(instruction, Closing) else None
            return inputs.StudyUnavailable(unwritten=unwritten, at=self._clock())

    def _carry_out(self, instruction: Instruction) -> inputs.Answer | None:  # noqa: C901  # a line each
        """Carries out an instruction, and returns the answer if there is one."""
        match instruction:
            case Propose():
                return self._propose()
            case Open():
                return self._open(instruction)
            case ChooseFinalists(count=count):
                plans = self._search.leaders(self.state.sweep, self._prior(), count)
                return inputs.FinalistsChosen(plans=plans, at=self._clock())
            case End():
                return self._end(instruction)
            case Store() | Abandon():
                self._write(instruction)
                self._has_written = True
                if instruction.ended is not None:
                    self._announce(instruction.ended)
            case Announce(event=event):
                self._announce(event)
            case Run(group=group) | Release(group=group) | Dismiss(group=group):
                self._cluster.send(group, instruction)
            case StartGroup(group=group):
                self._cluster.start_group(group)
            case Kill(group=group):
                self._cluster.kill(group)
            case RequestCapacity(need=need):
                self._cluster.request_capacity(need)
        return None

    def _prior(self) -> SearchPrior | None:
        return self._noting_problems(self._forecasts.prior(self.state.sweep))

    def _propose(self) -> inputs.PlanProposed:
        before = self._clock()
        proposed = self._search.propose(self.state.sweep, self._prior())
        now = self._clock()
        return replace(proposed, ask_seconds=now - before, at=now)

    def _open(self, opening: Open) -> inputs.TrialOpened:
        number = self._study.ask(opening.plan, opening.reason)
        forecast = self._forecasts.expectation(opening.plan, self.state.sweep)
        forecast = self._noting_problems(forecast)
        return inputs.TrialOpened(number=number, forecast=forecast, at=self._clock())

    def _write(self, instruction: Closing) -> None:
        match instruction:
            case Store(ended=TrialEnded(record=record)) if record.validation:
                self._study.keep_validation(record)
            case Store(ended=TrialEnded(record=record)):
                self._study.tell(record)
            case Abandon(number=number, ended=ended):
                cancelled = ended is None or isinstance(ended.record.outcome, Cancelled)
                self._study.abandon(number, None if ended is None or cancelled else ended.record)

    def _end(self, end: End) -> inputs.EndWritten:
        sweep = self.state.sweep
        ended = SweepEnded(
            reason=end.reason,
            at=end.at,
            regret_bound=self._search.regret_bound(sweep, self._prior()),
            untried=sweep.untried_count,
            compile_seconds=sweep.compile_seconds,
            start_seconds=sweep.start_seconds,
        )
        self._study.keep_end(ended)
        return inputs.EndWritten(ended=ended, at=self._clock())

    def give_up(self, cause: Stopped) -> None:
        """Closes running trials and the sweep, whose cluster is gone; no plan is blamed.

        For another thread than the loop's, which may be in a call that does not come back. The
        study goes first, and other drivers may have it then, since callbacks may have to wait.
        """
        now = self._clock()
        instructions = self._decide(inputs.StopRequested(cause=cause, at=now))
        closed = [one for one in (*self._pending, *instructions) if isinstance(one, Closing)]
        for each in closed:
            with contextlib.suppress(StudyError):
                self._write(each)
        self._study.release()
        for each in closed:
            if each.ended is not None:
                self._announce(each.ended)
        if self.state.sweep.ended is None and self.error is None:  # else it ended, or is unsaved
            untried = self.state.sweep.untried_count
            ended = SweepEnded(reason=ClusterSilent(), at=now, untried=untried)
            self._tell(inputs.EndWritten(ended=ended, at=now))
        self._journal.write()

    def note(self, *notes: Note) -> None:
        """Announces notes for the user, at once: the loop may be about to wait for a storage."""
        said = tuple(redact_texts(note, self._secrets) for note in notes)
        if said:
            self._tell(inputs.Notice(notes=said, at=self._clock()))

    def _tell(self, given: inputs.Notice | inputs.EndWritten) -> None:
        """Handles an input that only the callbacks have to know of."""
        for instruction in self._decide(given):
            self._carry_out(instruction)

    def _announce(self, event: Event) -> None:
        for callback in self._callbacks:
            callback.on_event(event, self.state.sweep)
        if isinstance(event, GroupStarted):
            self.note(*(transfer_note(study, event.fingerprint) for study in self._earlier))

    def _noting_problems(self, forecast: Forecast) -> Forecast:
        if problem := self._forecasts.problem():
            self.note(ForecastsEnded(error=problem))
        return forecast
