"""Capabilities of a model: packing, positions, and the shape of its blocks.

Packing is probed on a small model of the same class, with two short samples in one row: a list
of architectures would age with transformers.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import nn

from search_spaces.plan import Attention
from search_spaces.spec.schema import ModelSpec
from workers.models import function
from workers.models.built import seeded
from workers.models.config import make_config
from workers.models.config_source import config_class, raw_config
from workers.models.user_code import UserCodeError, user_code_errors

_FIRST, _SECOND = 5, 6  # tokens of the two samples
_VOCABULARY = 64
_TOLERANCE = 1e-4  # of the largest logit: fp32 sums in another order
_LEAK = 1e-2  # least effect of samples that attend to each other, else the probe is inconclusive
_SMALL_FIELDS = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "moe_intermediate_size": 32,
    "vocab_size": _VOCABULARY,
    "pad_token_id": None,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "initializer_range": 0.3,  # far from 0, so that attention affects the logits
}
_LENGTH_FIELDS = ("max_position_embeddings", "n_positions", "max_seq_len")
# Names that architectures have for one quantity; the first that exists counts.
_HEADS = ("num_attention_heads", "num_heads", "n_head")
_KEY_HEADS = ("num_key_value_heads",)
_FEED_FORWARD = ("intermediate_size", "ffn_dim", "encoder_ffn_dim", "d_ff", "n_inner")
_FEED_FORWARD_MULTIPLE = 4  # of the width, if the configuration leaves it out, as GPT-2's does


def keeps_packed_samples_apart(module: Any, attentions: tuple[Attention, ...]) -> bool:
    """Tells if restarting position ids, without an attention mask, separate samples in a row.

    The probe runs once for each of `attentions`, and all must pass. A model that cannot be
    made small, or that takes no position ids, fails it.
    """
    model_class: Any = type(module)
    fields = json.loads(module.config.to_json_string(use_diff=False))
    # all sizes of one architecture shrink to the same small model, which is probed once
    shrunk = json.dumps(_shrink(fields, model_class.config_class), sort_keys=True)
    return _probe(model_class, shrunk, attentions)


@lru_cache(maxsize=32)
def _probe(model_class: Any, shrunk_json: str, attentions: tuple[Attention, ...]) -> bool:
    with (
        contextlib.suppress(UserCodeError),
        user_code_errors(model_class.__name__),
        seeded(0),
        torch.no_grad(),
    ):
        return all(
            _isolates_samples(_small(model_class, json.loads(shrunk_json), attention))
            for attention in attentions
            if not attention.startswith("flash")  # runs only on CUDA, and reads positions
        )
    return False


def _small(model_class: Any, fields: dict[str, Any], attention: Attention) -> nn.Module:
    config = model_class.config_class.from_dict(fields)
    config.use_cache = False
    model: nn.Module = model_class._from_config(
        config, dtype=torch.float32, attn_implementation=attention
    )
    return model.eval()


def _shrink(fields: dict[str, Any], config_class: Any) -> dict[str, Any]:
    names: dict[str, str] = config_class.attribute_map
    aliases = {real: alias for alias, real in names.items()}
    shrunk = {
        name: _SMALL_FIELDS.get(aliases.get(name, name), value)
        for name, value in fields.items()
        if not name.startswith("_") and name not in ("name_or_path", "architectures")
    }
    _shrink_heads(shrunk, names)
    _shrink_layers(shrunk, names)
    return shrunk


def _shrink_heads(fields: dict[str, Any], names: dict[str, str]) -> None:
    heads_name = names.get("num_attention_heads", "num_attention_heads")
    heads, groups = fields.get(heads_name), fields.get("num_key_value_heads")
    fields[heads_name] = 4
    if groups is not None:
        fields["num_key_value_heads"] = {heads: 4, 1: 1}.get(groups, 2)
    if fields.get("head_dim") is not None:
        fields["head_dim"] = 8


def _shrink_layers(fields: dict[str, Any], names: dict[str, str]) -> None:
    kinds = list(dict.fromkeys(fields.get("layer_types") or ()))  # each kind once
    if kinds:
        fields["layer_types"] = kinds if len(kinds) > 1 else kinds * 2
    fields[names.get("num_hidden_layers", "num_hidden_layers")] = max(2, len(kinds))


def _isolates_samples(model: nn.Module) -> bool:
    first, other, second = (
        torch.randint(1, _VOCABULARY, (1, length)) for length in (_FIRST, _FIRST, _SECOND)
    )
    alone = torch.cat([_logits(model, first), _logits(model, second)], dim=1)
    packed = _logits(model, first, second)
    # control: without restarting positions, the first sample must affect the second
    joined, joined_other = (
        _logits(model, torch.cat([sample, second], dim=1))[:, _FIRST:] for sample in (first, other)
    )
    scale = packed.abs().max()
    leaks = (joined - joined_other).abs().max() > _LEAK * scale
    return bool(leaks and (packed - alone).abs().max() <= _TOLERANCE * scale)


def _logits(model: nn.Module, *samples: torch.Tensor) -> torch.Tensor:
    positions = torch.cat([torch.arange(sample.shape[1]) for sample in samples])
    output = model(input_ids=torch.cat(samples, dim=1), position_ids=positions[None])
    logits: torch.Tensor = output.logits
    return logits


def stated_positions(config: Any) -> int | None:
    """Returns the longest sequence that the configuration states [tokens], None without one."""
    text = config.get_text_config()
    for name in _LENGTH_FIELDS:
        length = getattr(text, name, None)
        if isinstance(length, int) and length > 0:
            return length
    return None


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
