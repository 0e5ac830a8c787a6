"""From an event to its line."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

from orchestrator.core.events import (
    Event,
    GroupStarted,
    Noted,
    SweepEnded,
    SweepStarted,
    TrialEnded,
    TrialStarted,
)
from orchestrator.core.metrics import proof_state
from orchestrator.core.objective import throughput
from orchestrator.core.state import SweepState
from orchestrator.event_log.lines import (
    GroupStartedLine,
    Line,
    NotedLine,
    SweepEndedLine,
    SweepStartedLine,
    TrialEndedLine,
    TrialStartedLine,
)
from orchestrator.report.format import outcome_words, plan_words
from search_spaces.outcome import Measured, Outcome, OutOfMemory

# What a message of somebody else's may hold: an address with a password, `password=...`
_IN_ADDRESS = re.compile(r"(://[^\s:/@]*):[^\s/]*@")
_NAMED = re.compile(
    r"(?i)\b((?:password|passwd|pwd|secret|token|api[_-]?key)\s*[=:]\s*)[^\s,;&'\"]+"
)


def line_of(event: Event, state: SweepState) -> Line:
    """An event, and the state after it, as a line."""
    common: dict[str, Any] = {
        "time": datetime.fromtimestamp(event.at, UTC),
        "study": state.study,
    }
    match event:
        case SweepStarted():
            return _sweep_started(event, common)
        case GroupStarted(world_size=ranks, fingerprint=seen):
            return GroupStartedLine(
                **common,
                ranks=ranks,
                hosts=seen.hosts,
                device=seen.device,
                device_name=seen.device_name,
            )
        case TrialStarted():
            return _trial_started(event, common)
        case TrialEnded():
            return _trial_ended(event, state, common)
        case Noted(text=text):
            return NotedLine(**common, text=without_secrets(text))
        case SweepEnded():
            return _sweep_ended(event, state, common)


def without_secrets(text: str) -> str:
    """A message without the passwords and tokens that libraries put into theirs."""
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
    plan, expected = event.plan, dict[str, Any]()
    if event.forecast is not None:
        expected["forecast_samples_per_second"] = event.forecast.samples_per_second.value
        expected["forecast_peak_bytes"] = event.forecast.peak_bytes.value
    return TrialStartedLine(
        **common,
        trial=event.number,
        proof=event.proof,
        plan=plan_words(plan),
        plan_key=plan.key,
        ranks=plan.world_size,
        why=event.why,
        deadline_seconds=event.deadline_seconds,
        ask_seconds=event.ask_seconds,
        **expected,
    )


def _trial_ended(event: TrialEnded, state: SweepState, common: dict[str, Any]) -> TrialEndedLine:
    record = event.record
    return TrialEndedLine(
        **common,
        trial=record.number,
        proof=record.proof,
        plan_key=record.plan.key,
        outcome=record.outcome.kind,
        detail=without_secrets(outcome_words(record.outcome)),
        seconds=record.ended_at - record.started_at,
        waited_seconds=event.waited_seconds,
        trials=len(state.records),
        **_shown(record.outcome),
        **_best(state),
    )


def _shown(outcome: Outcome) -> dict[str, Any]:
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
        reason=without_secrets(event.reason),
        trials=len(state.records),
        untried=event.untried,
        left=event.left,
        proof=proof_state(state),
        **_best(state),
    )
