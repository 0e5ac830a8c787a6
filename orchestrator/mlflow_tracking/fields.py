"""A record as MLflow shows it: parameters, metrics and tags under readable names. Plain values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from orchestrator.core.objective import Goal
from orchestrator.core.state import SweepState
from orchestrator.mlflow_tracking.view_state import SHOWN_PARAMS
from orchestrator.report.format import fixed_knobs, lossy_words, outcome_words, plan_words, strategy
from search_spaces.expectation import errors
from search_spaces.outcome import (
    Conditions,
    Costs,
    Diverged,
    Measured,
    MemoryReading,
    OutOfMemory,
)
from search_spaces.plan import RESTS
from search_spaces.record import Record
from search_spaces.spec.schema import GIB, SweepSpec

MAX_TAG = 5000  # characters that every store takes
_RENAMED = {"data": "data_ranks"}  # beside a loss and a data set, `data` says nothing


def trial_params(record: Record, state: SweepState) -> dict[str, str]:
    """The plan's knobs, and what a reader would otherwise have to look up.

    A knob that rests in all plans of the study is left out, but for those that MLflow's page shows:
    what is not there is at rest.
    """
    plan, fixed, spec = record.plan, fixed_knobs(state.space), state.spec
    knobs = {
        _RENAMED.get(name, name): _readable(value)
        for name, value in plan.as_dict().items()
        if name in SHOWN_PARAMS or name not in fixed or value != RESTS.get(name)
    }
    return {
        "strategy": strategy(plan),
        **knobs,
        "world_size": str(plan.world_size),
        "global_batch": str(plan.global_batch),
        "sequence_length": str(spec.train.sequence_length),
    }


def trial_tags(record: Record, spec: SweepSpec, study: str) -> dict[str, str]:
    """How the trial ended and why it was asked for, to filter and to group by."""
    outcome, plan = record.outcome, record.plan
    tags = {
        "plimsoll.study": study,
        "plimsoll.trial": str(record.number),
        "outcome": outcome.kind,
        "reason": outcome_words(outcome),
        "why": record.why,
        "engine": plan.engine,
        "zero_stage": str(plan.zero_stage),
        "plan": plan.key,
        "feasible": str(Goal.of(spec).feasible(record)).lower(),
    }
    if lossy := lossy_words(plan, spec):
        tags["lossy"] = lossy
    if trace := getattr(outcome, "trace", ""):
        tags["trace"] = trace[-MAX_TAG:]
    return {key: value[:MAX_TAG] for key, value in tags.items()}


def trial_name(record: Record, state: SweepState) -> str:
    """The run's name in MLflow's tables and legends: the plan, less what all plans share."""
    said = plan_words(record.plan, omit=fixed_knobs(state.space))
    return f"{'proof: ' if record.proof else ''}{said}"


def trial_status(record: Record) -> str:
    """MLflow's word for how the trial ended."""
    return {"measured": "FINISHED", "cancelled": "KILLED"}.get(record.outcome.kind, "FAILED")


def trial_metrics(record: Record, goal: Goal) -> dict[str, float]:
    """All that was expected and measured, with units in the names; what nobody knows is left out.

    `forecast_speed_error` and `forecast_memory_error` are forecast over measurement, less 1.
    """
    outcome = record.outcome
    # in this order: MLflow's page of comparisons begins with the first that runs share
    metrics: dict[str, float | None] = {}
    match outcome:
        case Measured():
            metrics |= _measured(outcome)
            if (priced := goal.value(record, "samples_per_price")) is not None:
                metrics["samples_per_price"] = priced.value
        case OutOfMemory():
            wanted, limit = outcome.wanted_bytes, outcome.limit_bytes
            metrics |= {
                "memory_wanted_gib": _gib(wanted),
                "memory_limit_gib": _gib(limit),
                "memory_excess": outcome.excess,
                # beside the share of measured trials, so that one chart shows both
                "memory_share": wanted / limit if wanted and limit else None,
                **_costs(outcome.costs),
            }
        case Diverged(costs=costs):
            metrics |= _costs(costs)
        case _:
            pass
    metrics |= _forecast(record)
    metrics["trial_seconds"] = record.ended_at - record.started_at
    return {name: rounded(value) for name, value in metrics.items() if value is not None}


def series(record: Record) -> Iterator[tuple[str, int, float, float]]:
    """Metric, step, value and moment [seconds since the epoch] of each optimizer step.

    When each step ended was not kept: the moments divide the trial's time evenly.
    """
    outcome = record.outcome
    if not isinstance(outcome, Measured):
        return
    each = (record.ended_at - record.started_at) / max(len(outcome.losses), 1)
    for name, values in (("loss", outcome.losses), ("step_time", outcome.seconds_by_step)):
        for step, value in enumerate(values):
            yield name, step, value, record.started_at + (step + 1) * each


def rounded(value: float) -> float:
    """Six significant digits: more than is measured, and what MLflow's columns can show."""
    return float(f"{value:.6g}")


def _forecast(record: Record) -> Mapping[str, float | None]:
    expected, wrong = record.forecast, errors(record.forecast, record.outcome)
    if expected is None:
        return {}
    rate = expected.samples_per_second
    return {
        "forecast_samples_per_second": rate.value,
        "forecast_samples_per_second_low": rate.low,
        "forecast_samples_per_second_high": rate.high,
        "forecast_peak_memory_gib": expected.peak_bytes.value / GIB,
        "forecast_fits": expected.fits,
        "forecast_learned_from": expected.learned_from,
        "forecast_speed_error": wrong.speed if wrong else None,
        "forecast_memory_error": wrong.memory if wrong else None,
    }


def _measured(outcome: Measured) -> Mapping[str, float | None]:
    rate, step, phases = outcome.samples_per_second, outcome.step_seconds, outcome.phases
    return {
        "samples_per_second": rate.value,
        "samples_per_second_low": rate.low,
        "samples_per_second_high": rate.high,
        "tokens_per_second": outcome.tokens_per_second,
        "mfu": outcome.mfu,
        "step_seconds": step.value,
        "step_seconds_low": step.low,
        "step_seconds_high": step.high,
        "data_seconds": phases.data,
        "forward_seconds": phases.forward,
        "backward_seconds": phases.backward,
        "optimizer_seconds": phases.optimizer,
        "tera_flops_per_step": outcome.flops_per_step and outcome.flops_per_step / 1e12,
        "warmup_steps": outcome.warmup_steps,
        "measured_steps": outcome.measured_steps,
        **_memory(outcome.memory),
        **_conditions(outcome.conditions),
        **_costs(outcome.costs),
    }


def _memory(memory: MemoryReading) -> Mapping[str, float | None]:
    parts = memory.anatomy
    return {
        "peak_memory_gib": _gib(memory.peak_bytes),
        "memory_limit_gib": _gib(memory.limit_bytes),
        "memory_share": memory.share,
        "reserved_gib": _gib(memory.reserved_bytes),
        "allocated_gib": _gib(memory.allocated_bytes),
        "weights_gib": _gib(parts.weights),
        "gradients_gib": _gib(parts.gradients),
        "optimizer_states_gib": _gib(parts.optimizer_states),
        "activations_gib": _gib(parts.activations),
        "fragmentation_gib": _gib(parts.fragmentation),
        "outside_allocator_gib": _gib(parts.outside),
    }


def _conditions(conditions: Conditions) -> Mapping[str, float | None]:
    return {
        "host_cpu_percent": conditions.host_cpu_percent,
        "host_memory_percent": conditions.host_memory_percent,
        "device_utilisation_percent": conditions.device_utilisation_percent,
        "device_power_watts": conditions.device_power_watts,
        "device_memory_gib": _gib(conditions.device_memory_bytes),
        "throttled": float(bool(conditions.throttled)),
    }


def _costs(costs: Costs | None) -> Mapping[str, float | None]:
    if costs is None:
        return {}
    return {
        "build_seconds": costs.build_seconds,
        "steps_seconds": costs.steps_seconds,
        "compile_seconds": costs.compile_seconds,
        "worker_seconds": costs.total_seconds,
        "residual_gib": _gib(costs.residual_bytes),
    }


def _readable(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _gib(size_bytes: int | None) -> float | None:
    return None if size_bytes is None else size_bytes / GIB
