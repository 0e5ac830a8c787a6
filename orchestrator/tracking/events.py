"""Events as flat lines of JSON with stable names: those of `tune --events` and of the journal.

Adding a field keeps `VERSION`; removing one, or changing its meaning, increases it. Fields are
described in docs/observability.md.
"""

from datetime import UTC, datetime
from math import inf
from typing import Any, Final, TextIO, final

from pydantic import ConfigDict, TypeAdapter

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
from orchestrator.core.state import AbstractView, SweepState, validation_state
from orchestrator.report.labels import outcome_words, plan_words
from orchestrator.report.reasons import note_words, reason_words, stop_words
from search_spaces.trial import Activity, Measured, OutOfMemory

VERSION: Final = 3
Line = dict[str, Any]
_JSON = TypeAdapter[Any](Any, config=ConfigDict(ser_json_inf_nan="strings"))


def header(at: float, study: str) -> Line:
    """Returns the fields that begin each line; `at` is in seconds since the epoch."""
    time = datetime.fromtimestamp(at, UTC).isoformat().replace("+00:00", "Z")
    return {"version": VERSION, "time": time, "study": study}


def line_of(event: Event, state: SweepState) -> Line:
    """Returns the line of an event, with the state after it: JSON values by name."""
    values = {**header(event.at, state.study), **_fields(event, state)}
    return {name: None if value in (inf, -inf) else value for name, value in values.items()}


def line_of_activity(activity: Activity, study: str) -> Line:
    """Returns the line of what a sweep does now."""
    speed, names = activity.samples_per_second, ("trial", "validation", "count", "most")
    line = {**header(activity.at, study), "event": "activity", "activity": activity.kind.value}
    line |= {name: getattr(activity, name) for name in names}
    return line | {"samples_per_second": speed and speed.value}


def to_json(line: Line) -> str:
    """Returns a line as JSON in ASCII, which any log can store, without a newline.

    Values of our own classes become objects, and numbers that JSON lacks texts, as pydantic reads
    both.
    """
    return _JSON.dump_json(line, ensure_ascii=True).decode()


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
                "compile_seconds": event.compile_seconds,
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
                "compile_seconds": event.compile_seconds,
                "start_seconds": event.start_seconds,
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


@final
class EventStream(AbstractView):
    """Writes each event and activity to a stream as a line, and flushes it."""

    def __init__(self, stream: TextIO, study: str) -> None:
        self._stream = stream
        self._study = study

    def on_event(self, event: Event, state: SweepState) -> None:
        """Writes an event."""
        self._write(line_of(event, state))

    def on_activity(self, activity: Activity) -> None:
        """Writes what the sweep does now."""
        self._write(line_of_activity(activity, self._study))

    def _write(self, line: Line) -> None:
        self._stream.write(to_json(line) + "\n")
        self._stream.flush()

    def close(self) -> None:
        """Does nothing: every line has been flushed."""
