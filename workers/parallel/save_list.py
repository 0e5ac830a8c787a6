"""What selective checkpointing keeps: results that are dear to compute for the room they take.

Those are the products of weights with activations, attention where one kernel computes it, and
what other ranks sent. The rest of a block is cheap to compute again. So are the scores of
attention written as two batched products (eager), for the memory that they take: Korthikanti et
al. 2022, "Reducing Activation Recomputation in Large Transformer Models", section 5.

Source: the save list of torchtitan, `torchtitan/distributed/activation_checkpoint.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.checkpoint import CheckpointPolicy

_NAMES = (
    "aten::mm",
    "aten::addmm",
    "aten::_scaled_mm",
    "aten::_grouped_mm",
    "aten::_scaled_dot_product_flash_attention",
    "aten::_scaled_dot_product_flash_attention_for_cpu",
    "aten::_scaled_dot_product_efficient_attention",
    "aten::_scaled_dot_product_cudnn_attention",
    "aten::_scaled_dot_product_fused_attention_overrideable",
    "flash_attn::_flash_attn_forward",
    "flash_attn::_flash_attn_varlen_forward",
    "flash_attn_3::_flash_attn_forward",
    "flash_attn_3::fwd",
    "_c10d_functional::all_reduce",
    "_c10d_functional::reduce_scatter_tensor",
)


Policy = Callable[..., CheckpointPolicy]


def kept_operators() -> frozenset[Any]:
    """The operators whose results are kept, as far as this process knows them by now."""
    return frozenset(_existing())


def _existing() -> Iterator[Any]:
    for name in _NAMES:
        space, operator = name.split("::")
        packet = getattr(getattr(torch.ops, space), operator, None)
        if packet is not None:
            yield packet.default


def keep_policy() -> Policy:
    """What `create_selective_checkpoint_contexts` asks for each operator of a block."""
    kept = kept_operators()

    def policy(_: object, operator: object, *_args: object, **_kwargs: object) -> CheckpointPolicy:
        if operator in kept:
            return CheckpointPolicy.MUST_SAVE
        return CheckpointPolicy.PREFER_RECOMPUTE

    return policy
