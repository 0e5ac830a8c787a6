"""Capabilities of a model: packing, positions, calls of its blocks.

Packing is probed on a small model of the same class, with two short samples in one row: a list
of architectures would age with transformers.
"""

import json
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from search_spaces.plan import Attention
from search_spaces.specification.schema import Task
from workers.data.collate import LONGEST, STARTS, sample_starts
from workers.models.block_calls import watch_blocks
from workers.models.packed_attention import STAND_IN
from workers.models.small_model import (
    VOCABULARY,
    random_tokens,
    small_fields,
    small_fields_of,
    small_model,
    task_inputs,
    tolerated,
)

_FIRST, _SECOND = 5, 6  # tokens of the two samples
_TOLERANCE = 1e-4  # of the largest logit: fp32 sums in another order
_LEAK = 1e-2  # least effect of samples that attend to each other, else the probe is inconclusive


def separating_attentions(module: Any, attentions: tuple[Attention, ...]) -> tuple[Attention, ...]:
    """Returns the attentions under which samples in a row do not read each other.

    Restarting position ids separate them, without an attention mask; flash attention is told their
    starts as well. A model that cannot be made small, or that takes no position ids, has none.
    """
    model_class: Any = type(module)
    fields = json.loads(module.config.to_json_string(use_diff=False))
    shrunk = small_fields(fields, model_class.config_class)
    # kernels of flash attention run only on CUDA; one stands in for all
    kernels = {name: STAND_IN if name.startswith("flash") else name for name in attentions}
    separating = set[str]()
    for kernel in dict.fromkeys(kernels.values()):
        with tolerated(model_class.__name__):
            if _isolates_samples(small_model(model_class, shrunk, kernel)):
                separating.add(kernel)
    return tuple(name for name, kernel in kernels.items() if kernel in separating)


def bypasses_hooks(module: Any, task: Task) -> bool:
    """Tells if a small model of the same class calls its blocks past their hooks; False if unknown.

    `block_calls.training_facts` tells it of a whole model.
    """
    model_class: Any = type(module)
    past = list[nn.Module]()
    with tolerated(model_class.__name__):
        model = small_model(model_class, small_fields_of(module, task), "eager")
        past = watch_blocks(model)
        model(**task_inputs(task, random_tokens(1, _SECOND), [_SECOND]))
    return bool(past)


def _isolates_samples(model: nn.Module) -> bool:
    """Compares two packed rows, each with both samples, with the samples alone."""
    first, other, second = (
        torch.randint(1, VOCABULARY, (1, length)) for length in (_FIRST, _FIRST, _SECOND)
    )
    alone = [_logits(model, [sample]) for sample in (first, second, other)]
    packed = _logits(model, [first, second], [second, other])
    expected = torch.cat([torch.cat(alone[:2], dim=1), torch.cat(alone[1:], dim=1)])
    # control: without restarting positions, the first sample must affect the second
    joined, joined_other = (
        _logits(model, [torch.cat([sample, second], dim=1)])[:, _FIRST:]
        for sample in (first, other)
    )
    scale = packed.abs().max()
    leaks = (joined - joined_other).abs().max() > _LEAK * scale
    return bool(leaks and (packed - expected).abs().max() <= _TOLERANCE * scale)


def _logits(model: Any, *rows: list[torch.Tensor]) -> torch.Tensor:
    """Returns logits of rows of packed samples, of the same length in total."""
    tokens = torch.cat([torch.cat(samples, dim=1) for samples in rows])
    positions = torch.stack(
        [torch.cat([torch.arange(each.shape[1]) for each in samples]) for samples in rows]
    )
    bounds: dict[str, Any] = {}
    if model.config._attn_implementation == STAND_IN:
        bounds = dict.fromkeys(STARTS, sample_starts(positions))
        bounds |= dict.fromkeys(LONGEST, tokens.shape[1])
    return model(input_ids=tokens, position_ids=positions, **bounds).logits


def learned_positions(module: nn.Module) -> int | None:
    """Returns the longest sequence that tables of absolute positions allow [tokens].

    None for models without such a table: rotary and relative positions have no end. Tables
    with reserved rows (OPT's `offset`, RoBERTa's `padding_idx`) hold fewer positions than rows.
    """
    return min(_table_positions(module), default=None)


def _table_positions(module: nn.Module) -> Iterator[int]:
    for name, table in module.named_modules():
        leaf = name.rpartition(".")[2]
        is_position = leaf == "wpe" or ("position" in leaf and "relative" not in leaf)
        if isinstance(table, nn.Embedding) and is_position:
            offset = getattr(table, "offset", 0)
            padding = 0 if table.padding_idx is None else table.padding_idx + 1
            yield table.num_embeddings - max(int(offset), padding)
