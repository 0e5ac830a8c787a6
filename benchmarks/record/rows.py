"""A trial as a row, in the columns that published measurements are kept in.

What those columns say of a plan is in words that other trainers would use too; beside them stand
the plan's own knobs, as far as they vary, and what only a recording knows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.published.cells import COLUMNS
from orchestrator.report.reasons import outcome_sentence
from search_spaces.facts import ModelFacts
from search_spaces.plan import Plan
from search_spaces.plan_table import KNOB_NAMES, PlanTable
from search_spaces.spec.schema import GIB, ModelSpec, SweepSpec
from search_spaces.trial import Fingerprint, Measured, Outcome, OutOfMemory, TimedOut
from workers.models import function
from workers.models.config import make_config
from workers.models.config_source import config_class, raw_config

_HEADS = ("num_attention_heads", "num_heads", "n_head")
_KEY_HEADS = ("num_key_value_heads",)
_FEED_FORWARD = ("intermediate_size", "ffn_dim", "encoder_ffn_dim", "d_ff", "n_inner")
_FEED_FORWARD_MULTIPLE = 4  # of the width, if the configuration leaves it out, as GPT-2's does


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """Widths and heads of a model's blocks; None if its configuration does not state them."""

    hidden: int | None = None
    heads: int | None = None
    key_value_heads: int | None = None
    feed_forward: int | None = None


def shape_of(spec: ModelSpec) -> ModelShape:
    """Returns the shape that a model's configuration states; all None for a user's function.

    Raises:
        ModelError: If the model cannot be found or configured.
    """
    if function.is_function(spec):
        return ModelShape()
    raw = raw_config(spec)
    config = make_config(spec.name, config_class(spec, raw), raw, spec.config).get_text_config()
    hidden, heads = _first(config, ("hidden_size",)), _first(config, _HEADS)
    feed_forward = _first(config, _FEED_FORWARD)
    return ModelShape(
        hidden=hidden,
        heads=heads,
        key_value_heads=_first(config, _KEY_HEADS) or heads,
        feed_forward=feed_forward or (hidden and _FEED_FORWARD_MULTIPLE * hidden),
    )


def _first(config: Any, names: tuple[str, ...]) -> int | None:
    values = (getattr(config, name, None) for name in names)
    return next((value for value in values if isinstance(value, int)), None)


PUBLISHED = ("source", "url_or_path", *COLUMNS[1:])
MEASURED = (
    *("repeat", "trial_seconds", "samples_per_s_low", "samples_per_s_high"),
    *("wanted_gib", "outcome"),
)
_FOLLOWS = "accumulation"  # from the other knobs; grad_accum has it
_TERA = 10**12
_DIGITS = 6  # of a measurement: it never has more that mean something
_RESIDENT = "memory = resident peak above the bare worker"
_RESERVED = "memory = max_memory_reserved and what lies outside the allocator"

Cells = dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """The subject of all rows of a recording; `set_id` names it."""

    name: str
    spec: SweepSpec
    facts: ModelFacts
    shape: ModelShape
    set_id: str


def varying_knobs(table: PlanTable) -> tuple[str, ...]:
    """Names of the knobs that have more than one value in the table."""
    names = (name for name in KNOB_NAMES if name != _FOLLOWS and len(table.values[name]) > 1)
    return tuple(name for name in names if np.ptp(table.codes[name]) > 0)


def header(knobs: Sequence[str]) -> tuple[str, ...]:
    """The columns of a recording in which these knobs vary."""
    own = tuple(name for name in knobs if name not in PUBLISHED)
    return (*PUBLISHED, *own, *MEASURED)


def knob_cells(plan: Plan, knobs: Sequence[str]) -> tuple[str, ...]:
    """The values of a plan's knobs as they stand in a row."""
    return tuple(_word(getattr(plan, name)) for name in knobs)


def row_of(
    subject: Subject,
    plan: Plan,
    repeat: int,
    outcome: Outcome,
    fingerprint: Fingerprint,
    knobs: Sequence[str],
) -> Cells:
    """One measurement; a column without a cell is something that nobody knows."""
    told: dict[str, Any] = {
        **_subject_cells(subject, fingerprint),
        **_plan_cells(plan),
        **dict(zip(knobs, (getattr(plan, name) for name in knobs), strict=True)),
        **_outcome_cells(outcome, plan),
        "repeat": repeat,
        "notes": _notes(subject, outcome, fingerprint),
    }
    return {name: _word(value) for name, value in told.items()}


def _subject_cells(subject: Subject, fingerprint: Fingerprint) -> Mapping[str, Any]:
    facts, shape, spec = subject.facts, subject.shape, subject.spec
    cuda = fingerprint.device == "cuda"
    return {
        "source": f"recording {subject.name}",
        "model": facts.name,
        "n_params": facts.parameters,
        "n_layers": facts.blocks,
        "hidden": shape.hidden,
        "n_heads": shape.heads,
        "n_kv_heads": shape.key_value_heads,
        "ffn_hidden": shape.feed_forward,
        "vocab": facts.vocab_size,
        "seq_len": spec.train.sequence_length,
        "gpu": fingerprint.device_name if cuda else fingerprint.device,
        "gpu_mem_gib": _rounded(fingerprint.device_memory_bytes / GIB),
        "ranking_sets": subject.set_id,
    }


def _plan_cells(plan: Plan) -> Mapping[str, Any]:
    split = "sp" if plan.sequence_parallel else "none"
    return {
        "n_gpus": plan.world_size,
        "precision": plan.precision,
        "optimizer": plan.optimizer,
        "sharding": _sharding(plan),
        "offload": _offload(plan),
        "ckpt": _checkpointing(plan),
        "attn_impl": plan.attention,
        "compile": plan.compile,
        "tp": plan.tensor,
        "pp": plan.pipeline,
        "dp": plan.data,
        "cp_or_sp": split if plan.tensor > 1 else "",
        "micro_batch": plan.micro_batch,
        "grad_accum": plan.accumulation,
        "global_batch": plan.global_batch,
    }


def _sharding(plan: Plan) -> str:
    if plan.engine == "deepspeed":
        return f"zero{plan.zero_stage}" if plan.zero_stage else "deepspeed zero0"
    if plan.zero_stage == 0:
        return "ddp" if plan.data > 1 else "none"
    kept = "fsdp_grad_op" if plan.zero_stage == 2 else "fsdp_full"
    if plan.replicas == 1:
        return kept
    return f"hsdp {kept} degree {plan.data // plan.replicas}"


def _offload(plan: Plan) -> str:
    moved = {"optimizer": plan.offload_optimizer, "parameters": plan.offload_parameters}
    parts = [f"{what} to {where}" for what, where in moved.items() if where != "none"]
    if plan.checkpoint_offload:
        parts.append("activations to cpu")
    return ", ".join(parts) or "none"


def _checkpointing(plan: Plan) -> str:
    if not plan.checkpoint_ratio:
        return "none"
    if plan.checkpoint_ratio == 1:
        return plan.checkpoint_mode
    ratio = _word(plan.checkpoint_ratio)
    return ratio if plan.checkpoint_mode == "full" else f"selective {ratio}"


def _outcome_cells(outcome: Outcome, plan: Plan) -> Mapping[str, Any]:
    always = {"outcome": outcome.kind, "oom": isinstance(outcome, OutOfMemory)}
    match outcome:
        case Measured(samples_per_second=rate):
            return always | {
                "samples_per_s": _rounded(rate.value),
                "samples_per_s_low": _rounded(rate.low),
                "samples_per_s_high": _rounded(rate.high),
                "tokens_per_s_per_gpu": _rounded(outcome.tokens_per_second / plan.world_size),
                **_flops_cells(outcome, plan),
                "peak_mem_gib": _rounded(outcome.memory.peak_bytes / GIB),
                "trial_seconds": _rounded(outcome.costs.total_seconds),
            }
        case OutOfMemory(wanted_bytes=wanted, costs=costs):
            return always | {
                "wanted_gib": None if wanted is None else _rounded(wanted / GIB),
                "trial_seconds": costs and _rounded(costs.total_seconds),
            }
        case TimedOut(deadline_seconds=seconds):
            return always | {"trial_seconds": _rounded(seconds)}
        case _:
            costs = getattr(outcome, "costs", None)
            return always | {"trial_seconds": costs and _rounded(costs.total_seconds)}


def _flops_cells(outcome: Measured, plan: Plan) -> Mapping[str, Any]:
    if outcome.flops_per_step is None:
        return {}
    per_second = outcome.flops_per_step / outcome.step_seconds.value
    return {
        "tflops_per_gpu": _rounded(per_second / plan.world_size / _TERA),
        "mfu_pct": None if outcome.mfu is None else _rounded(100 * outcome.mfu),
        "mfu_or_hfu": "mfu",
    }


def _notes(subject: Subject, outcome: Outcome, fingerprint: Fingerprint) -> str:
    if not isinstance(outcome, Measured | OutOfMemory):
        return f"RUN FAILED: {' '.join(outcome_sentence(outcome).split())}"
    notes = [_RESERVED if fingerprint.device == "cuda" else _RESIDENT]
    if subject.spec.data.kind != "fixed":
        notes.append("samples of variable length")
    if isinstance(outcome, Measured) and outcome.conditions.throttled:
        notes.append(f"throttled: {', '.join(outcome.conditions.throttled)}")
    return "; ".join(notes)


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")


def _word(value: Any) -> str:
    """A cell: nothing for None, whole numbers without a point, switches as YAML has them."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.{_DIGITS}g}" if isinstance(value, float) else str(value)
