"""Parameters, metrics and tags of trials and sweeps for MLflow, as plain values."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from orchestrator.core.objective import (
    Objective,
    outcome_counts,
    ranked,
    record_of,
    score,
    speedup,
    throughput,
)
from orchestrator.core.reasons import ChecksMachine, Remeasures
from orchestrator.core.records import Record, forecast_errors
from orchestrator.core.repeats import is_repeat
from orchestrator.core.state import SweepState
from orchestrator.report import labels
from orchestrator.report.reasons import reason_words
from orchestrator.report.sweep_text import best_sentence
from orchestrator.tracking.mlflow_view import shown_params
from search_spaces.facts import CodeVersion, DataProfile, LengthBin, Provenance
from search_spaces.plan import DEFAULTS
from search_spaces.specification.schema import GIB, SweepSpec
from search_spaces.trial import (
    Conditions,
    Costs,
    Diverged,
    DoesNotTrain,
    Estimate,
    Measured,
    MemoryReading,
    OutOfMemory,
)

if TYPE_CHECKING:
    from mlflow.entities import DatasetInput

MAX_TAG = 5000  # characters that every store accepts
_RENAMED = {"data": "data_ranks"}  # next to a loss and a dataset, `data` would be ambiguous
_MOST_FILES = 200  # names in a dataset; a store accepts 64 KiB
_SAME_NAMES = (
    *("tokens_per_second", "joules_per_token", "mfu", "paper_mfu"),
    *("gradient_norm", "expert_skew", "warmup_steps", "measured_steps"),
)
_SOURCE = {"mlflow.source.name": "plimsoll"}


def trial_params(record: Record, state: SweepState) -> dict[str, str]:
    """Returns the plan's knobs, and derived values that readers would have to look up.

    Knobs at their default in all plans of the study are left out, except those in the columns of
    MLflow's page.
    """
    plan, fixed, spec = record.plan, labels.fixed_knobs(state.space), state.spec
    knobs = {
        _RENAMED.get(name, name): f"{value:.4g}" if isinstance(value, float) else str(value)
        for name, value in plan.as_dict().items()
        if name in shown_params() or name not in fixed or value != DEFAULTS.get(name)
    }
    return {
        "strategy": labels.strategy(plan),
        **knobs,
        "world_size": str(plan.world_size),
        "global_batch": str(plan.global_batch),
        "sequence_length": str(spec.train.sequence_length),
    }


def trial_tags(record: Record, spec: SweepSpec, study: str) -> dict[str, str]:
    """Returns the trial's outcome and the reason of its proposal, to filter and to group by."""
    outcome, plan = record.outcome, record.plan
    tags = {
        "plimsoll.study": study,
        "plimsoll.trial": str(record.number),
        "outcome": outcome.kind,
        "detail": labels.outcome_words(outcome),
        "reason": reason_words(record.reason),
        "engine": plan.engine,
        "zero_stage": str(plan.zero_stage),
        "plan": plan.key,
        "feasible": str(Objective.of(spec).feasible(record)).lower(),
    }
    if lossy := labels.lossy_words(plan, spec):
        tags["lossy"] = lossy
    if isinstance(outcome, Measured) and outcome.attention_backends:
        tags["attention_backends"] = ", ".join(outcome.attention_backends)
    if trace := getattr(outcome, "trace", ""):
        tags["trace"] = trace[-MAX_TAG:]
    return {key: value[:MAX_TAG] for key, value in tags.items()}


def trial_name(record: Record, state: SweepState) -> str:
    """Returns the name of the run: its role, and the plan without knobs that all plans share."""
    words = labels.plan_words(record.plan, omit=labels.fixed_knobs(state.space))
    role = "baseline" if record.plan == state.space.baseline else ""
    if state.ended and state.best and state.best.number == record.number:
        role = "best"
    if record.validation:
        role = "validation"
    elif isinstance(record.reason, Remeasures | ChecksMachine):
        role = f"repeat of {record.reason.trial}"
    return f"{role}: {words}" if role else words


def final_metrics(state: SweepState) -> dict[int, dict[str, float]]:
    """Returns by trial the rank of each feasible plan (1: best), and its speed by all trials."""
    order = (state.best, *state.ties, *ranked(state.by_plan, state.objective))
    plans = {record.number: record for record in order if record is not None}
    return {
        number: {"rank": at, "pooled_samples_per_second": rounded(throughput(record))}
        for at, (number, record) in enumerate(plans.items(), start=1)
    }


def trial_metrics(record: Record, objective: Objective) -> dict[str, float]:
    """Returns all forecasts and measurements, with units in the names, without unknown values.

    `forecast_speed_error` and `forecast_memory_error` are forecast / measurement - 1.
    """
    outcome = record.outcome
    # the order matters: MLflow's comparison page starts with the first metric that runs share
    metrics: dict[str, float | None] = {}
    match outcome:
        case Measured():
            metrics |= _measured(outcome)
            if (priced := objective.value(record, "samples_per_price")) is not None:
                metrics["samples_per_price"] = priced.value
        case OutOfMemory():
            wanted, limit = outcome.wanted_bytes, outcome.limit_bytes
            metrics |= {
                "memory_wanted_gib": _gib(wanted),
                "memory_limit_gib": _gib(limit),
                "memory_excess": outcome.excess,
                # the same metric as for measured trials, so that one chart shows both
                "memory_share": wanted / limit if wanted and limit else None,
                **_costs(outcome.costs),
            }
        case Diverged(costs=costs) | DoesNotTrain(costs=costs):
            metrics |= _costs(costs)
        case _:
            pass
    metrics |= _forecast(record)
    metrics["trial_seconds"] = record.ended_at - record.started_at
    return {name: rounded(value) for name, value in metrics.items() if value is not None}


def series(record: Record) -> Iterator[tuple[str, int, float, float]]:
    """Yields metric, step, value and time [seconds since the epoch] of each optimizer step.

    Times of steps are not recorded: the yielded ones divide the trial's time evenly.
    """
    outcome = record.outcome
    if not isinstance(outcome, Measured):
        return
    step_seconds = (record.ended_at - record.started_at) / max(len(outcome.losses), 1)
    for name, values in (("loss", outcome.losses), ("step_time", outcome.seconds_by_step)):
        for step, value in enumerate(values):
            yield name, step, value, record.started_at + (step + 1) * step_seconds


def rounded(value: float) -> float:
    """Rounds to six significant digits: beyond measurement noise, and readable in columns."""
    return float(f"{value:.6g}")


def _forecast(record: Record) -> Mapping[str, float | None]:
    forecast, error = record.forecast, forecast_errors(record.forecast, record.outcome)
    if forecast is None:
        return {}
    return {
        **_interval("forecast_samples_per_second", forecast.samples_per_second),
        "forecast_peak_memory_gib": forecast.peak_bytes.value / GIB,
        "forecast_fits": forecast.fits,
        "forecast_learned_from": forecast.calibration_trials,
        "forecast_speed_error": error.speed if error else None,
        "forecast_memory_error": error.memory if error else None,
    }


def _interval(name: str, estimate: Estimate) -> dict[str, float]:
    return {name: estimate.value, f"{name}_low": estimate.low, f"{name}_high": estimate.high}


def _measured(outcome: Measured) -> Mapping[str, float | None]:
    ceiling = outcome.ceiling
    return {
        **_interval("samples_per_second", outcome.samples_per_second),
        **{name: getattr(outcome, name) for name in _SAME_NAMES},
        "ceiling_tera_flops": None if ceiling is None else ceiling.flops_per_second / 1e12,
        "ceiling_measured": None if ceiling is None else float(ceiling.measured),
        **_interval("step_seconds", outcome.step_seconds),
        **{f"{name}_seconds": value for name, value in asdict(outcome.phases).items()},
        "tera_flops_per_step": outcome.flops_per_step and outcome.flops_per_step / 1e12,
        **_memory(outcome.memory),
        **_conditions(outcome.conditions),
        **_costs(outcome.costs),
    }


def _memory(memory: MemoryReading) -> Mapping[str, float | None]:
    parts = asdict(memory.anatomy)
    return {
        "peak_memory_gib": _gib(memory.peak_bytes),
        "memory_limit_gib": _gib(memory.limit_bytes),
        "memory_share": memory.share,
        "reserved_gib": _gib(memory.reserved_bytes),
        "reserved_share": memory.reserved_share,
        "allocator_retries": float(memory.allocator_retries),
        "allocated_gib": _gib(memory.allocated_bytes),
        "outside_allocator_gib": _gib(parts.pop("outside")),
        **{f"{name}_gib": _gib(size) for name, size in parts.items()},
    }


def _conditions(conditions: Conditions) -> Mapping[str, float | None]:
    values = asdict(conditions)
    size, throttled = values.pop("device_memory_bytes"), values.pop("throttled")
    return {**values, "device_memory_gib": _gib(size), "throttled": float(bool(throttled))}


def _costs(costs: Costs | None) -> Mapping[str, float | None]:
    if costs is None:
        return {}
    values = asdict(costs)
    total, size = values.pop("total_seconds"), values.pop("residual_bytes")
    return {**values, "worker_seconds": total, "residual_gib": _gib(size)}


def _gib(size_bytes: int | None) -> float | None:
    return None if size_bytes is None else size_bytes / GIB


def validation_tags(record: Record, state: SweepState) -> Mapping[str, str]:
    """Returns tags that distinguish validations from trials, with a validation's result."""
    if not record.validation:
        return {"kind": "repeat" if is_repeat(record) else "trial"}
    return {
        "kind": "validation",
        "validation_of": str(record.number),
        "validation_holds": str(record.number not in state.failed_validations).lower(),
        "detail": labels.validation_words(record, state),
    }


def validation_metrics(record: Record, state: SweepState) -> Mapping[str, float]:
    """Returns the measurements that only validations have; empty for a trial."""
    outcome = record.outcome
    if not isinstance(outcome, Measured) or (validation := outcome.validation) is None:
        return {}
    check = labels.check_of(record, state)
    metrics = {
        "worst_steps": float(validation.worst_steps),
        "evaluation_seconds": validation.evaluation_seconds,
        "evaluation_loss": validation.evaluation_loss,
        "checkpoint_seconds": validation.checkpoint_seconds,
        "checkpoint_gib": validation.checkpoint_bytes / GIB,
        "loss_difference": None if check is None else check.difference,
    }
    return {name: value for name, value in metrics.items() if value is not None}


def study_params(spec: SweepSpec, memory_limit_bytes: int | None) -> dict[str, str]:
    """Returns the parameters of the sweep, without those that may differ between its drivers."""
    limit = "all available" if memory_limit_bytes is None else f"{memory_limit_bytes / GIB:g}"
    return {
        "model": spec.model.name,
        "task": spec.model.task or "that of the model's class",
        "data": ", ".join(spec.data.files)[:MAX_TAG] or spec.data.kind,
        "global_batch": str(spec.train.global_batch),
        "sequence_length": str(spec.train.sequence_length),
        "optimizer": spec.train.optimizer,
        "precision": spec.train.precision,
        "memory_limit_gib": limit,
        "objective": spec.objective.metric,
        "headroom": str(spec.objective.headroom),
        "sampler": spec.study.sampler,
    }


def sweep_metrics(state: SweepState, ended: int) -> dict[str, float]:
    """Returns the metrics of the sweep after its first `ended` trials."""
    if ended < len(state.records):
        state = replace(state, records=state.records[:ended], validations=())
    outcomes = outcome_counts(state.records)
    metrics = {
        "trials": float(ended),
        "trials_measured": float(outcomes.get("measured", 0)),
        "trials_out_of_memory": float(outcomes.get("out_of_memory", 0)),
    }
    incumbent = state.best
    if incumbent is not None:
        metrics |= {
            "best_samples_per_second": throughput(incumbent),
            "best_objective": score(incumbent, state.objective),
            "best_trial": float(incumbent.number),
        }
    if gain := speedup(incumbent, record_of(state.by_plan, state.space.baseline)):
        metrics |= _interval("speedup", gain)
    return {name: rounded(value) for name, value in metrics.items()}


def sweep_tags(state: SweepState) -> dict[str, str]:
    """Returns the result of the sweep, under the tags of its trials, and the validated trial."""
    validation, best_record = state.validated, state.best
    tags = {
        "kind": "sweep",
        "detail": best_sentence(state)[:MAX_TAG],
        "validated": "no" if validation is None else f"trial {validation.number}",
    }
    # empty instead of left out, to replace the tag of an earlier driver of the study
    lossy = "" if best_record is None else labels.lossy_words(best_record.plan, state.spec)
    return tags | {"lossy": lossy}


def source_tags(provenance: Provenance | None) -> dict[str, str]:
    """Returns MLflow's tags for user, source and version of a run."""
    if provenance is None:
        return dict(_SOURCE)
    return {
        **_SOURCE,
        "mlflow.user": provenance.user,
        "mlflow.source.type": "JOB" if provenance.is_job else "LOCAL",
        **code_tags(provenance.code),
        **dict(provenance.context),
    }


def job_context(user: str, code: CodeVersion | None, user_tags: Mapping[str, str]) -> str:
    """Returns the `MLFLOW_RUN_CONTEXT` of a job, which runs a copy of a folder without `.git`.

    Args:
        user: The user who submits the job.
        code: The version of the code in the folder.
        user_tags: Tags of the variable on the submitting machine; they override the others.
    """
    return json.dumps({"mlflow.user": user, **code_tags(code), **user_tags})


def code_tags(code: CodeVersion | None) -> dict[str, str]:
    """Returns the tags of a commit; empty without one."""
    if code is None:
        return {}
    tags = {
        "mlflow.source.git.commit": code.commit,
        "mlflow.source.git.branch": code.branch,
        "mlflow.source.git.repoURL": code.remote,
        "mlflow.source.git.dirty": str(code.modified).lower(),
    }
    return {name: value for name, value in tags.items() if value}


def dataset_input(data: DataProfile) -> DatasetInput:
    """Returns the dataset of a run, for the column `Dataset` of MLflow's page."""
    from mlflow.entities import Dataset, DatasetInput, InputTag

    source_type, source = _source(data)
    profile = {
        "num_rows": data.samples,
        "num_elements": data.tokens,
        "tokens_per_row": {_label(bin_): bin_.samples for bin_ in data.histogram},
    } | ({"tokenizer": data.tokenizer} if data.tokenizer else {})
    dataset = Dataset(
        name=data.name,
        digest=data.digest,
        source_type=source_type,
        source=json.dumps(source),
        profile=json.dumps(profile),
    )
    return DatasetInput(dataset, [InputTag("mlflow.data.context", "training")])


def _source(data: DataProfile) -> tuple[str, dict[str, Any]]:
    # MLflow's page reads other fields for each type of source
    if not data.files:
        return "code", {"tags": _SOURCE}
    return "local", {"uri": data.files[0], "files": data.files[:_MOST_FILES]}


def _label(bin_: LengthBin) -> str:
    single = bin_.shortest == bin_.longest
    return str(bin_.shortest) if single else f"{bin_.shortest}-{bin_.longest}"
