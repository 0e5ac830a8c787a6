"""Event log: one flat line of JSON per event, with stable names.

Adding a field keeps `VERSION`; removing one, or changing its meaning, increases it. Fields are
described in docs/observability.md.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO, final

from orchestrator.core.events import (
    Event,
    GroupStarted,
    Noted,
    SweepEnded,
    SweepStarted,
    TrialEnded,
    TrialStarted,
)
from orchestrator.core.objective import memory_limit_of, throughput
from orchestrator.core.state import AbstractCallback, SweepState, validation_state
from orchestrator.report.labels import outcome_words, plan_words
from orchestrator.report.reasons import note_words, reason_words, stop_words
from search_spaces.safety.files import sync_folder
from search_spaces.specification.schema import SweepSpec
from search_spaces.trial import Measured, OutOfMemory

if TYPE_CHECKING:
    from io import FileIO

VERSION: Final = 2
FILE = "events.jsonl"


Line = dict[str, Any]


def line_of(event: Event, state: SweepState) -> Line:
    """Returns the line of an event, with the state after it: JSON values by name."""
    return {
        "version": VERSION,
        "time": datetime.fromtimestamp(event.at, UTC).isoformat().replace("+00:00", "Z"),
        "study": state.study,
        **_fields(event, state),
    }


def _fields(event: Event, state: SweepState) -> Line:
    match event:
        case SweepStarted(spec=spec):
            return {
                "event": "sweep_started",
                "experiment": spec.tracking.experiment or event.study,
                "model": spec.model.name,
                "objective": spec.objective.metric,
                "plans": len(event.space.candidates),
                "groups": event.groups,
                "trials_before": len(event.records),
                "trials_budget": spec.budget.trials,
                "minutes_budget": spec.budget.minutes,
                "memory_limit_bytes": event.memory_limit_bytes,
            }
        case GroupStarted(world_size=ranks, fingerprint=fingerprint):
            return {
                "event": "group_started",
                "ranks": ranks,
                "start_seconds": event.start_seconds,
                "hosts": fingerprint.hosts,
                "device": fingerprint.device,
                "device_name": fingerprint.device_name,
            }
        case TrialStarted():
            return {"event": "trial_started", **_trial_started(event)}
        case TrialEnded():
            return {"event": "trial_ended", **_trial_ended(event, state)}
        case Noted(note=note):
            return {"event": "noted", "text": note_words(note)}
        case SweepEnded():
            return {
                "event": "sweep_ended",
                "reason": stop_words(event.reason),
                "trials": len(state.records),
                "untried": event.untried,
                "regret_bound": event.regret_bound,
                **_best(state),
                "validation": validation_state(state),
            }


def _trial_started(event: TrialStarted) -> Line:
    plan, forecast = event.plan, event.forecast
    return {
        "trial": event.number,
        "validation": event.validation,
        "plan": plan_words(plan),
        "plan_key": plan.key,
        "ranks": plan.world_size,
        "reason": reason_words(event.reason),
        "deadline_seconds": event.deadline_seconds,
        "ask_seconds": event.ask_seconds,
        "forecast_samples_per_second": forecast and forecast.samples_per_second.value,
        "forecast_peak_bytes": forecast and forecast.peak_bytes.value,
    }


def _trial_ended(event: TrialEnded, state: SweepState) -> Line:
    record, outcome = event.record, event.record.outcome
    measured = outcome if isinstance(outcome, Measured) else None
    rate = measured and measured.samples_per_second
    return {
        "trial": record.number,
        "validation": record.validation,
        "plan_key": record.plan.key,
        "outcome": outcome.kind,
        "detail": outcome_words(outcome),
        "seconds": record.ended_at - record.started_at,
        "waited_seconds": event.waited_seconds,
        "samples_per_second": rate and rate.value,
        "samples_per_second_low": rate and rate.low,
        "samples_per_second_high": rate and rate.high,
        "peak_bytes": measured and measured.memory.peak_bytes,
        "wanted_bytes": outcome.wanted_bytes if isinstance(outcome, OutOfMemory) else None,
        "limit_bytes": memory_limit_of(record),
        "trials": len(state.records),
        **_best(state),
    }


def _best(state: SweepState) -> Line:
    best = state.best
    return {
        "best_trial": best and best.number,
        "best_samples_per_second": best and throughput(best),
        "best_plan": best and plan_words(best.plan),
        "best_plan_key": best and best.plan.key,
    }


def to_json(line: Line) -> str:
    """Returns the line as JSON in ASCII, which any log can store, without a newline."""
    finite = {name: None if value in (inf, -inf) else value for name, value in line.items()}
    return json.dumps(finite, separators=(",", ":"), allow_nan=False)


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
class LineFile:
    """File to append lines to; one that cannot be written never disturbs the sweep.

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

    def append(self, line: str, *, sync: bool = False) -> None:
        """Appends a line; `sync`: it and all before it outlive a power loss."""
        text = line.encode() + b"\n"
        try:
            if self._file is None:
                self._file = _open(self._path)
            # one unbuffered write, so that a killed driver leaves complete lines
            if self._file.write(text) != len(text):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if sync:
                os.fsync(self._file)
        except OSError as error:
            self._problem = error.strerror or str(error)
            self._close()  # the next line opens it again and ends an incomplete one

    def close(self) -> None:
        """Closes the file; reports it if lines are missing."""
        self._close()
        if self._problem is not None:
            self._say(f"{self._path} lacks some events of the sweep: {self._problem}")

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


@final
class EventFile(AbstractCallback):
    """Appends each event to a file; see `LineFile`."""

    def __init__(self, path: Path, say: Callable[[str], None]) -> None:
        self._lines = LineFile(path, say)

    def on_event(self, event: Event, state: SweepState) -> None:
        """Appends an event; results and the end are synced, as they are in the study."""
        told = isinstance(event, TrialEnded | SweepEnded)
        self._lines.append(to_json(line_of(event, state)), sync=told)

    def close(self) -> None:
        """Closes the file; reports it if events are missing."""
        self._lines.close()


def _open(path: Path) -> FileIO:
    """Opens a file to append lines; ends an incomplete line of an earlier driver first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = path.open("a+b", buffering=0)
    if size := file.seek(0, os.SEEK_END):
        file.seek(size - 1)
        if file.read(1) != b"\n":
            file.write(b"\n")
    else:
        sync_folder(path.parent)
    return file
