"""JSON documents of reports, explanations and plans; docs/cli.md has their fields."""

from dataclasses import fields, is_dataclass
from typing import Any, get_args

from orchestrator.core.fingerprints import differing
from orchestrator.core.objective import memory_limit_of, outcome_counts
from orchestrator.core.records import Record
from orchestrator.core.state import SweepState, validation_state
from orchestrator.explain.trial import TrialExplanation
from orchestrator.explain.untried import UntriedExplanation
from orchestrator.explain.winner import BestExplanation
from orchestrator.forecast.planner import PlanningReport
from orchestrator.forecast.table import ForecastRow
from orchestrator.report.explain_text import Explanation, standing_sentences, untried_reasons
from orchestrator.report.labels import failure_words, lossy_words, outcome_words, plan_words
from orchestrator.report.reasons import reason_words, stop_words
from orchestrator.report.sweep_text import best_sentence
from orchestrator.report.understood import understood_rows
from search_spaces.facts import Understanding
from search_spaces.plan import Plan
from search_spaces.space import Space
from search_spaces.specification.load import spec_to_tree
from search_spaces.specification.schema import SweepSpec
from search_spaces.trial import Measured, Outcome, OutOfMemory

FORECAST = ("samples_per_second", "step_seconds", "peak_bytes", "fits", "limited_by", "host_bytes")


def explanation_document(explanation: Explanation, state: SweepState) -> dict[str, Any]:
    """Converts an explanation; `explains` says which kind it is."""
    content = _fields(explanation, state.spec)
    match explanation:
        case BestExplanation():
            return {"explains": "best", "best": best_sentence(state), **content}
        case TrialExplanation():
            reasons = list(standing_sentences(explanation, state))
            return {"explains": "trial", **content, "reasons": reasons}
        case UntriedExplanation():
            reasons = list(untried_reasons(explanation, state))
            return {"explains": "untried", **content, "reasons": reasons}


def planning_document(report: PlanningReport) -> dict[str, Any]:
    """Converts a planning report."""
    return {**_fields(report, None), "understood": understood_document(report.understood)}


def check_document(spec: SweepSpec, understanding: Understanding, space: Space) -> dict[str, Any]:
    """Converts a check."""
    model = understanding.model
    return {
        "understood": understood_document(understanding),
        "model": {"name": model.name, "parameters": model.parameters, "blocks": model.blocks},
        "ranks": understanding.ranks,
        "ranks_assumed": spec.cluster.workers == "auto",
        "legal_plans": len(space.candidates),
        "ruled_out": dict(space.ruled_out),
        "baseline": space.baseline.as_dict(),
        "searched": {name: list(values) for name, values in space.domains if len(values) > 1},
        "effective_specification": spec_to_tree(spec),
    }


def understood_document(understanding: Understanding | None) -> dict[str, Any] | None:
    """Converts what was understood: the rows of its block, and the values behind them."""
    if understanding is None:
        return None
    rows = [list(row) for row in understood_rows(understanding)]
    return {"rows": rows, **_fields(understanding, None)}


def _fields(value: Any, spec: SweepSpec | None) -> dict[str, Any]:
    return {field.name: _json(getattr(value, field.name), spec) for field in fields(value)}


def _json(value: Any, spec: SweepSpec | None) -> Any:
    """Converts a value inside of an explanation or a planning report."""
    if isinstance(value, Record):
        assert spec is not None
        return _trial(value, spec)
    if isinstance(value, Plan):
        return value.as_dict()
    if isinstance(value, ForecastRow):
        values = _fields(value, None)
        forecast = values.pop("forecast")
        return values | {name: forecast[name] for name in FORECAST}
    if isinstance(value, get_args(Outcome)):
        return {"kind": value.kind, "detail": outcome_words(value)}
    if isinstance(value, tuple | list):
        return [_json(one, spec) for one in value]
    return _fields(value, spec) if is_dataclass(value) else value


def report_document(state: SweepState) -> dict[str, Any]:
    """Converts the report of a sweep: the best plan, its equals, all trials and validations."""
    best, ended, failed = state.best, state.ended, state.failed_validations
    return {
        "study": state.study,
        "understood": understood_document(state.understanding),
        "model": state.spec.model.name,
        "sequence_length": state.spec.train.sequence_length,
        "objective": state.objective.metric,
        "memory_limit_bytes": state.memory_limit_bytes,
        "ended": None if ended is None else stop_words(ended.reason),
        "untried_plans": None if ended is None else ended.untried,
        "untried_at_most_ratio": None if ended is None else ended.regret_bound,
        "answer": None if best is None else _trial(best, state.spec),
        "validation": validation_state(state),
        "equal_trials": [record.number for record in state.ties],
        "outcomes": outcome_counts(state.records),
        "other_fingerprints": _other_fingerprints(state),
        "trials": [_trial(record, state.spec) for record in state.records],
        "validations": [
            _trial(record, state.spec)
            | {"failure": failure_words(failed[record.number]) if record.number in failed else None}
            for record in state.validations
        ],
    }


def _other_fingerprints(state: SweepState) -> dict[str, Any] | None:
    here = state.last_fingerprint
    others, changes = differing(state.records, here) if here else ((), ())
    if not others:
        return None
    return {
        "trials": [record.number for record in others],
        "differences": [_fields(change, None) for change in changes],
    }


def _trial(record: Record, spec: SweepSpec) -> dict[str, Any]:
    outcome, forecast = record.outcome, record.forecast
    measured = outcome if isinstance(outcome, Measured) else None
    return {
        "trial": record.number,
        "plan": record.plan.as_dict(),
        "plan_words": plan_words(record.plan),
        "lossy": lossy_words(record.plan, spec),
        "outcome": outcome.kind,
        "detail": outcome_words(outcome),
        "reason": reason_words(record.reason),
        "started_at": record.started_at,
        "ended_at": record.ended_at,
        "samples_per_second": measured and _fields(measured.samples_per_second, None),
        "step_seconds": measured and _fields(measured.step_seconds, None),
        "tokens_per_second": measured and measured.tokens_per_second,
        "joules_per_token": measured and measured.joules_per_token,
        "gradient_norm": measured and measured.gradient_norm,
        "expert_skew": measured and measured.expert_skew,
        "attention_backends": measured and list(measured.attention_backends),
        "peak_bytes": measured and measured.memory.peak_bytes,
        "wanted_bytes": outcome.wanted_bytes if isinstance(outcome, OutOfMemory) else None,
        "limit_bytes": memory_limit_of(record),
        "forecast": forecast
        and {
            "samples_per_second": _fields(forecast.samples_per_second, None),
            "peak_bytes": _fields(forecast.peak_bytes, None),
            "fits_probability": forecast.fits,
        },
    }
