"""Probes of the loss: what of a plan changes it, for this class of models.

Plans are lossless only if padding, other samples of a micro-batch and the implementation of
attention leave a sample's loss alone. Most models of transformers keep this, some do not: FNet
mixes padding in, dynamic RoPE depends on the longest row, an auxiliary loss of experts is no mean
over samples. The probes run on a small model of the same class, since a list of architectures
would age with transformers.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from search_spaces.plan import Attention
from search_spaces.spec.schema import Task
from workers.models.built import seeded
from workers.models.small_model import (
    random_tokens,
    small_fields_of,
    small_model,
    task_inputs,
    tolerated,
)

_SHORT, _LONG = 6, 12  # tokens of a sample, and of a longer one
_SWITCH = 8  # tokens after which rotary positions that depend on the length change
_MANY_LABELS = 1000  # of other micro-batches: a mean over the batch's own ignores them


@dataclass(frozen=True, slots=True, kw_only=True)
class LossFindings:
    """Findings of the probes: shares of the largest logit or of the loss, None if one cannot run.

    Attributes:
        padding: How much outputs for a sample change beside a longer one.
        batch: How much the loss of two samples differs from the mean of theirs.
        attentions: How much outputs differ from those of the first attention, for each other one.
        shifts_labels: False if a causal model's loss at a token is of that token itself.
    """

    padding: float | None = None
    batch: float | None = None
    attentions: tuple[tuple[Attention, float], ...] = ()
    shifts_labels: bool = True


def probe_loss(module: Any, task: Task, attentions: tuple[Attention, ...]) -> LossFindings:
    """Probes a small model of a module's class; one that cannot run finds nothing.

    Args:
        module: A model of transformers.
        task: What it is trained for.
        attentions: Implementations to compare; those that run on CUDA alone are left out.
    """
    shrunk = json.dumps(small_fields_of(module, task), sort_keys=True)
    comparable = tuple(name for name in attentions if not name.startswith("flash"))
    model_class: Any = type(module)
    return _findings(model_class, shrunk, task, comparable)


def follows_label_count(module: Any, task: Task) -> bool:
    """Tells if the loss of a small model of the same class follows `num_items_in_batch`.

    A model that cannot be made small, or whose loss fails, does not.
    """
    model_class: Any = type(module)
    alone = counted = torch.zeros(())
    with tolerated(model_class.__name__):
        model = small_model(model_class, small_fields_of(module, task), "eager")
        inputs = task_inputs(task, random_tokens(1, _SHORT), [_SHORT])
        alone = model(**inputs).loss
        counted = model(**inputs, num_items_in_batch=_MANY_LABELS).loss
    return bool(counted < alone / 2)


@lru_cache(maxsize=32)
def _findings(
    model_class: Any, fields_json: str, task: Task, attentions: tuple[Attention, ...]
) -> LossFindings:
    fields = json.loads(fields_json)
    first, *others = attentions or ("eager",)
    found: dict[str, Any] = {}
    name = model_class.__name__
    with tolerated(name):
        short_rope = small_model(model_class, _with_early_switch(fields), first)
        found["padding"] = _padding_difference(short_rope, task)
    with tolerated(name):
        model = small_model(model_class, fields, first)
        found["batch"] = _batch_difference(model, task)
        if task == "causal-lm":
            found["shifts_labels"] = _shifts_labels(model)
    with tolerated(name):
        found["attentions"] = tuple(
            (other, _attention_difference(model_class, fields, task, (first, other)))
            for other in others
        )
    return LossFindings(**found)


def _with_early_switch(fields: dict[str, Any]) -> dict[str, Any]:
    """Returns a configuration whose dynamic or longrope positions switch after `_SWITCH` tokens."""
    rope = fields.get("rope_parameters")
    if not isinstance(rope, dict) or rope.get("rope_type") not in ("dynamic", "longrope"):
        return fields
    original = "original_max_position_embeddings"  # of longrope, in both places
    early = {name: _SWITCH for name in (original, "max_position_embeddings") if name in fields}
    if original in rope:
        rope = rope | {original: _SWITCH}
    return fields | early | {"rope_parameters": rope}


def _padding_difference(model: nn.Module, task: Task) -> float:
    tokens = random_tokens(2, _LONG)
    alone = model(**task_inputs(task, tokens[:1, :_SHORT], [_SHORT])).logits
    beside = model(**task_inputs(task, tokens, [_SHORT, _LONG])).logits[:1]
    if alone.dim() == 3:
        beside = beside[:, : alone.shape[1]]
    return _apart(beside, alone)


def _batch_difference(model: nn.Module, task: Task) -> float:
    take_batch_statistics(model)
    tokens = random_tokens(2, _SHORT)
    both = task_inputs(task, tokens, [_SHORT, _SHORT])
    parts = [{name: value[row : row + 1] for name, value in both.items()} for row in (0, 1)]
    mean = sum(model(**part).loss for part in parts) / 2
    return float((model(**both).loss - mean).abs() / mean.abs())


def _shifts_labels(model: nn.Module) -> bool:
    tokens = random_tokens(1, _SHORT)
    result = model(input_ids=tokens, labels=tokens)
    logits = result.logits[0].float()
    copied, shifted = cross_entropy(logits, tokens[0]), cross_entropy(logits[:-1], tokens[0, 1:])
    # logits near zero tell nothing: then both are the logarithm of the vocabulary
    return bool((result.loss - shifted).abs() <= (result.loss - copied).abs())


def _attention_difference(
    model_class: Any, fields: dict[str, Any], task: Task, pair: tuple[Attention, Attention]
) -> float:
    inputs = task_inputs(task, random_tokens(2, _LONG), [_SHORT, _LONG])
    with seeded(1):
        first = small_model(model_class, fields, pair[0])
    second = small_model(model_class, fields, pair[1])
    second.load_state_dict(first.state_dict())
    one, other = first(**inputs).logits, second(**inputs).logits
    if task in ("causal-lm", "masked-lm"):  # rows of padding may be anything
        kept = inputs["attention_mask"].bool()
        one, other = one[kept], other[kept]
    return _apart(other, one)


def take_batch_statistics(model: nn.Module) -> None:
    """Puts normalisations over the batch into training mode, in place, and nothing that draws."""
    for part in model.eval().modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            part.train()


def _apart(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).abs().max() / expected.abs().max())
