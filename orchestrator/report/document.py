"""JSON documents of reports, explanations and comparisons; docs/cli.md has their fields."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import TypeAdapter

from orchestrator.core.objective import memory_limit_of, outcome_counts
from orchestrator.core.state import SweepState, validation_state
from orchestrator.explain.compare import PlanComparison, StudyComparison
from orchestrator.explain.trial import TrialExplanation
from orchestrator.explain.untried import UntriedExplanation
from orchestrator.explain.winner import BestExplanation
from orchestrator.report.labels import failure_words, lossy_words, outcome_words, plan_words
from search_spaces.trial import Estimate, Measured, OutOfMemory, Record

Explanation = BestExplanation | TrialExplanation | UntriedExplanation
Comparison = PlanComparison | StudyComparison
# for each type, the field that identifies it and its name there
_KINDS: dict[type, tuple[str, str]] = {
    BestExplanation: ("explains", "won"),
    TrialExplanation: ("explains", "trial"),
    UntriedExplanation: ("explains", "untried"),
    PlanComparison: ("compares", "plans"),
    StudyComparison: ("compares", "studies"),
}
_ADAPTERS: dict[type, TypeAdapter[Any]] = {kind: TypeAdapter(kind) for kind in _KINDS}


def document(value: Explanation | Comparison) -> dict[str, Any]:
    """Converts an explanation or a comparison; the first field says which kind it is."""
    kind = type(value)
    field, name = _KINDS[kind]
    return {field: name, **_ADAPTERS[kind].dump_python(value, mode="json")}


def report_document(state: SweepState) -> dict[str, Any]:
    """Converts the report of a sweep: the best plan, its equals, all trials and validations."""
    best, ended = state.best, state.ended
    return {
        "study": state.study,
        "model": state.spec.model.name,
        "objective": state.goal.metric,
        "memory_limit_bytes": state.memory_limit_bytes,
        "ended": None if ended is None else ended.reason,
        "untried_plans": None if ended is None else ended.untried,
        "untried_at_most_ratio": None if ended is None else ended.left,
        "answer": None if best is None else _trial(best, state),
        "validation": validation_state(state),
        "equal_trials": [record.number for record in state.equals],
        "outcomes": outcome_counts(state.records),
        "trials": [_trial(record, state) for record in state.records],
        "validations": [
            _trial(record, state) | _failure(record, state) for record in state.validations
        ],
    }


def estimate_document(estimate: Estimate | None) -> dict[str, float] | None:
    """Converts a value with its 95 % confidence interval."""
    if estimate is None:
        return None
    return {"value": estimate.value, "low": estimate.low, "high": estimate.high}


def _trial(record: Record, state: SweepState) -> dict[str, Any]:
    return {
        "trial": record.number,
        "plan": record.plan.as_dict(),
        "plan_words": plan_words(record.plan),
        "lossy": lossy_words(record.plan, state.spec),
        "outcome": record.outcome.kind,
        "detail": outcome_words(record.outcome),
        "why": record.why,
        "started_at": record.started_at,
        "ended_at": record.ended_at,
        **dict(_figures(record)),
    }


def _figures(record: Record) -> Iterator[tuple[str, Any]]:
    outcome, forecast = record.outcome, record.forecast
    measured = outcome if isinstance(outcome, Measured) else None
    for name in ("samples_per_second", "step_seconds"):
        yield name, estimate_document(getattr(measured, name, None))
    yield "tokens_per_second", measured and measured.tokens_per_second
    yield "peak_bytes", measured and measured.memory.peak_bytes
    yield "wanted_bytes", outcome.wanted_bytes if isinstance(outcome, OutOfMemory) else None
    yield "limit_bytes", memory_limit_of(record)
    yield (
        "forecast",
        forecast
        and {
            "samples_per_second": estimate_document(forecast.samples_per_second),
            "peak_bytes": estimate_document(forecast.peak_bytes),
            "fits_probability": forecast.fits,
        },
    )


def _failure(validation: Record, state: SweepState) -> dict[str, str | None]:
    failure = state.why_failed(validation)
    return {"failure": None if failure is None else failure_words(failure)}
