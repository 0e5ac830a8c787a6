"""Event log: one flat line of JSON per event, with stable names.

Adding a field keeps `VERSION`; removing one, or changing its meaning, increases it. Fields are
described in docs/observability.md.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TextIO, final

from pydantic import AwareDatetime, Field, TypeAdapter, ValidationError

from orchestrator.core.events import (
    Event,
    GroupStarted,
    Noted,
    SweepEnded,
    SweepStarted,
    TrialEnded,
    TrialStarted,
)
from orchestrator.core.objective import throughput
from orchestrator.core.state import AbstractCallback, SweepState, ValidationState, validation_state
from orchestrator.report.labels import outcome_words, plan_words
from orchestrator.report.reasons import note_words, reason_words, stop_words
from search_spaces.errors import UserError
from search_spaces.spec.schema import SweepSpec
from search_spaces.trial import Measured, Outcome, OutOfMemory

if TYPE_CHECKING:
    from io import FileIO

VERSION: Final = 1
# secrets in messages of libraries: an address with a password, and `password=...`
_IN_ADDRESS = re.compile(r"(://[^\s:/@]*):[^\s/]*@")
_NAMED = re.compile(
    r"(?i)\b((?:password|passwd|pwd|secret|token|api[_-]?key)\s*[=:]\s*)[^\s,;&'\"]+"
)
FILE = "events.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class AbstractLine:
    """Fields of every line: version of the schema, time and study."""

    version: Literal[1] = 1
    time: AwareDatetime  # UTC
    study: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepStartedLine(AbstractLine):
    """A driver started or resumed the study."""

    event: Literal["sweep_started"] = "sweep_started"
    experiment: str
    model: str
    objective: str
    plans: int
    groups: int
    trials_before: int
    trials_budget: int
    minutes_budget: float
    memory_limit_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStartedLine(AbstractLine):
    """Workers reported their hardware."""

    event: Literal["group_started"] = "group_started"
    ranks: int
    hosts: int
    device: str
    device_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialStartedLine(AbstractLine):
    """A trial, or a validation, started."""

    event: Literal["trial_started"] = "trial_started"
    trial: int
    validation: bool
    plan: str
    plan_key: str
    ranks: int
    reason: str
    deadline_seconds: float
    ask_seconds: float | None = None
    forecast_samples_per_second: float | None = None
    forecast_peak_bytes: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialEndedLine(AbstractLine):
    """A trial, or a validation, ended."""

    event: Literal["trial_ended"] = "trial_ended"
    trial: int
    validation: bool
    plan_key: str
    outcome: str
    detail: str
    seconds: float
    waited_seconds: float | None = None
    samples_per_second: float | None = None
    samples_per_second_low: float | None = None
    samples_per_second_high: float | None = None
    peak_bytes: int | None = None
    wanted_bytes: int | None = None
    limit_bytes: int | None = None
    trials: int
    best_trial: int | None = None
    best_samples_per_second: float | None = None
    best_plan: str | None = None
    best_plan_key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NotedLine(AbstractLine):
    """A message for the user."""

    event: Literal["noted"] = "noted"
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepEndedLine(AbstractLine):
    """The sweep ended."""

    event: Literal["sweep_ended"] = "sweep_ended"
    reason: str
    trials: int
    untried: int
    regret_bound: float | None = None
    best_trial: int | None = None
    best_samples_per_second: float | None = None
    best_plan: str | None = None
    best_plan_key: str | None = None
    validation: ValidationState


Line = (
    SweepStartedLine
    | GroupStartedLine
    | TrialStartedLine
    | TrialEndedLine
    | NotedLine
    | SweepEndedLine
)


def line_of(event: Event, state: SweepState) -> Line:
    """Converts an event, with the state after it, to a line."""
    common: dict[str, Any] = {
        "time": datetime.fromtimestamp(event.at, UTC),
        "study": state.study,
    }
    match event:
        case SweepStarted():
            return _sweep_started(event, common)
        case GroupStarted(world_size=ranks, fingerprint=fingerprint):
            return GroupStartedLine(
                **common,
                ranks=ranks,
                hosts=fingerprint.hosts,
                device=fingerprint.device,
                device_name=fingerprint.device_name,
            )
        case TrialStarted():
            return _trial_started(event, common)
        case TrialEnded():
            return _trial_ended(event, state, common)
        case Noted(note=note):
            return NotedLine(**common, text=without_secrets(note_words(note)))
        case SweepEnded():
            return _sweep_ended(event, state, common)


def without_secrets(text: str) -> str:
    """Returns a message without passwords and tokens, which libraries put into theirs."""
    return _NAMED.sub(r"\1***", _IN_ADDRESS.sub(r"\1:***@", text))


def _sweep_started(event: SweepStarted, common: dict[str, Any]) -> SweepStartedLine:
    spec = event.spec
    return SweepStartedLine(
        **common,
        experiment=spec.tracking.experiment or event.study,
        model=spec.model.name,
        objective=spec.objective.metric,
        plans=len(event.space.candidates),
        groups=event.groups,
        trials_before=len(event.records),
        trials_budget=spec.budget.trials,
        minutes_budget=spec.budget.minutes,
        memory_limit_bytes=event.memory_limit_bytes,
    )


def _trial_started(event: TrialStarted, common: dict[str, Any]) -> TrialStartedLine:
    plan, forecast = event.plan, dict[str, Any]()
    if event.forecast is not None:
        forecast["forecast_samples_per_second"] = event.forecast.samples_per_second.value
        forecast["forecast_peak_bytes"] = event.forecast.peak_bytes.value
    return TrialStartedLine(
        **common,
        trial=event.number,
        validation=event.validation,
        plan=plan_words(plan),
        plan_key=plan.key,
        ranks=plan.world_size,
        reason=reason_words(event.reason),
        deadline_seconds=event.deadline_seconds,
        ask_seconds=event.ask_seconds,
        **forecast,
    )


def _trial_ended(event: TrialEnded, state: SweepState, common: dict[str, Any]) -> TrialEndedLine:
    record = event.record
    return TrialEndedLine(
        **common,
        trial=record.number,
        validation=record.validation,
        plan_key=record.plan.key,
        outcome=record.outcome.kind,
        detail=without_secrets(outcome_words(record.outcome)),
        seconds=record.ended_at - record.started_at,
        waited_seconds=event.waited_seconds,
        trials=len(state.records),
        **_measurements(record.outcome),
        **_best(state),
    )


def _measurements(outcome: Outcome) -> dict[str, Any]:
    match outcome:
        case Measured(samples_per_second=rate, memory=memory):
            return {
                "samples_per_second": rate.value,
                "samples_per_second_low": rate.low,
                "samples_per_second_high": rate.high,
                "peak_bytes": memory.peak_bytes,
                "limit_bytes": memory.limit_bytes,
            }
        case OutOfMemory(wanted_bytes=wanted, limit_bytes=limit):
            return {"wanted_bytes": wanted, "limit_bytes": limit}
        case _:
            return {}


def _best(state: SweepState) -> dict[str, Any]:
    best = state.best
    if best is None:
        return {}
    return {
        "best_trial": best.number,
        "best_samples_per_second": throughput(best),
        "best_plan": plan_words(best.plan),
        "best_plan_key": best.plan.key,
    }


def _sweep_ended(event: SweepEnded, state: SweepState, common: dict[str, Any]) -> SweepEndedLine:
    return SweepEndedLine(
        **common,
        reason=without_secrets(stop_words(event.reason)),
        trials=len(state.records),
        untried=event.untried,
        regret_bound=event.regret_bound,
        validation=validation_state(state),
        **_best(state),
    )


_LINES: TypeAdapter[Line] = TypeAdapter(Annotated[Line, Field(discriminator="event")])


def to_json(line: Line) -> str:
    """Returns the line as JSON in ASCII, which any log can store, without a newline."""
    return _LINES.dump_json(line, ensure_ascii=True).decode()


def from_json(text: str | bytes) -> Line:
    """Parses a line of `to_json`; fields of later releases are ignored.

    Raises:
        pydantic.ValidationError: If the text is not a line of the event log.
    """
    return _LINES.validate_json(text)


def read_events(path: Path) -> Iterator[Line]:
    """Yields the lines of a file in order.

    Incomplete lines, which a killed driver can leave, are skipped.

    Raises:
        UserError: If the file cannot be read, or this release does not know a line.
    """
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise UserError(f"the event log {path} cannot be read: {error.strerror}") from error
    for number, text in enumerate(lines, 1):
        try:
            yield from_json(text)
        except ValidationError as error:
            first = error.errors()[0]
            if first["type"] == "json_invalid":
                continue
            raise UserError(
                f"line {number} of {path} is not an event of version {VERSION}: {first['msg']}"
            ) from error


def events_file(spec: SweepSpec, name: str) -> Path:
    """Returns the path of a study's event log."""
    return Path(spec.study.folder, name, FILE)


@final
class EventStream(AbstractCallback):
    """Writes each event to a stream as a line, and flushes it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def on_event(self, event: Event, state: SweepState) -> None:
        """Writes an event."""
        self._stream.write(to_json(line_of(event, state)) + "\n")
        self._stream.flush()

    def close(self) -> None:
        """Does nothing: every line has been flushed."""


@final
class EventFile(AbstractCallback):
    """Appends each event to a file; a file that cannot be written never disturbs the sweep.

    Successive drivers of a study append to the same file.

    Args:
        path: The file.
        say: Receives a message about a file that could not be written, once, when closing.
    """

    def __init__(self, path: Path, say: Callable[[str], None]) -> None:
        self._path = path
        self._say = say
        self._file: FileIO | None = None
        self._problem: str | None = None

    def on_event(self, event: Event, state: SweepState) -> None:
        """Appends an event."""
        text = to_json(line_of(event, state)).encode() + b"\n"
        try:
            if self._file is None:
                self._file = _open(self._path)
            # one unbuffered write, so that a killed driver leaves complete lines
            if self._file.write(text) != len(text):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            self._problem = error.strerror or str(error)
            self._close_file()  # the next event opens it again and ends an incomplete line

    def close(self) -> None:
        """Closes the file; reports it if events are missing."""
        self._close_file()
        if self._problem is not None:
            self._say(f"{self._path} lacks some events of the sweep: {self._problem}")

    def _close_file(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _open(path: Path) -> FileIO:
    """Opens a file to append lines; ends an incomplete line of an earlier driver first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = path.open("a+b", buffering=0)
    if size := file.seek(0, os.SEEK_END):
        file.seek(size - 1)
        if file.read(1) != b"\n":
            file.write(b"\n")
    return file
