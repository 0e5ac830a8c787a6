"""Whether a model keeps packed samples apart: tried out on a small model of its class.

A list of architectures would age with transformers; two short samples in one row do not lie.
"""

from __future__ import annotations

import contextlib
import json
from functools import lru_cache
from typing import Any

import torch
from torch import nn

from search_spaces.plan import Attention
from workers.models.seeding import seeded
from workers.models.user_code import UsersCodeError, users_code

_FIRST, _SECOND = 5, 6  # tokens of the two samples
_VOCABULARY = 64
_TOLERANCE = 1e-4  # of the largest logit: fp32 sums in another order
_LEAK = 1e-2  # what samples that see each other must at least show, else nothing is proved
_SHRUNK = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "moe_intermediate_size": 32,
    "vocab_size": _VOCABULARY,
    "pad_token_id": None,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "initializer_range": 0.3,  # far from 0, so that attention shows in the logits
}


def keeps_packed_samples_apart(module: Any, attentions: tuple[Attention, ...]) -> bool:
    """Whether restarting position ids, without an attention mask, separate samples in a row.

    Tried with every one of `attentions`. A model that cannot be made small, or that takes no
    position ids, counts as one that does not.
    """
    model_class: Any = type(module)
    fields = json.loads(module.config.to_json_string(use_diff=False))
    # sizes of one architecture shrink to the same small model, which is tried once
    shrunk = json.dumps(_shrink(fields, model_class.config_class), sort_keys=True)
    return _probe(model_class, shrunk, attentions)


@lru_cache(maxsize=32)
def _probe(model_class: Any, shrunk_json: str, attentions: tuple[Attention, ...]) -> bool:
    with (
        contextlib.suppress(UsersCodeError),
        users_code(model_class.__name__),
        seeded(0),
        torch.no_grad(),
    ):
        return all(
            _is_apart(_small(model_class, json.loads(shrunk_json), attention))
            for attention in attentions
            if not attention.startswith("flash")  # runs on CUDA alone, and reads positions
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
        name: _SHRUNK.get(aliases.get(name, name), value)
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


def _is_apart(model: nn.Module) -> bool:
    first, other, second = (
        torch.randint(1, _VOCABULARY, (1, length)) for length in (_FIRST, _FIRST, _SECOND)
    )
    alone = torch.cat([_logits(model, first), _logits(model, second)], dim=1)
    packed = _logits(model, first, second)
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
