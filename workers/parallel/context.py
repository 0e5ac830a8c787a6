"""Context ranks: each has a part of the tokens of its samples, and of attention some of the heads.

Before attention an all-to-all gives each rank all tokens of its heads, after it one gives back its
tokens' results of all heads.

Source:
    Jacobs et al. 2023, arXiv:2309.14509 (DeepSpeed-Ulysses).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._functional_collectives import all_to_all_single_autograd
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import (
    and_masks,
    find_packed_sequence_indices,
    packed_sequence_mask_function,
    sdpa_mask,
)

from workers.data.collate import CONTEXT

_NAME = "plimsoll_context"
_HEADS, _TOKENS = 1, 2  # dimensions of queries, keys and values


@dataclass(slots=True)
class _Rows:
    """Whole rows of the micro-batch that is computed."""

    positions: torch.Tensor = field(default_factory=lambda: torch.zeros(1, 1))

    def take(self, _: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
        self.positions = kwargs.pop(CONTEXT)
        return args, kwargs

    def mask(self, *, mask_function: Callable[..., Any], **others: Any) -> torch.Tensor | None:
        """Returns the mask of whole rows, in place of that of a part of them."""
        width = self.positions.shape[1]
        others |= dict.fromkeys(("q_length", "kv_length"), width)
        others |= {"q_offset": 0, "kv_offset": 0, "attention_mask": None}
        packed = find_packed_sequence_indices(self.positions)
        if packed is not None:
            mask_function = and_masks(mask_function, packed_sequence_mask_function(packed))
            others["allow_is_causal_skip"] = False
        return sdpa_mask(mask_function=mask_function, **others)


class _Ungrouped:
    """An attention module as seen with as many keys as queries."""

    num_key_value_groups = 1

    def __init__(self, module: nn.Module) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def split_attention(module: nn.Module, group: dist.ProcessGroup) -> None:
    """Has the attention of a model of transformers see whole rows, in place.

    Args:
        module: Its inputs are those of `collate.part_of_tokens`.
        group: The ranks that divide the tokens of their samples, in their order.
    """
    config: Any = module.config
    attend = AttentionInterface()[config._attn_implementation]
    is_flash, ranks, rows = "flash" in config._attn_implementation, group.size(), _Rows()
    # transformers keeps `attention`, and as long as that held the group, peers would wait for a
    # rank that failed
    name = group.group_name

    def attention(
        layer: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: Any,
        **rest: Any,
    ) -> tuple[torch.Tensor, None]:
        if key.shape[_HEADS] % ranks:
            groups = query.shape[_HEADS] // key.shape[_HEADS]
            key, value = (one.repeat_interleave(groups, _HEADS) for one in (key, value))
            layer = _Ungrouped(layer)
        whole = (_exchange(one, _HEADS, _TOKENS, ranks, name) for one in (query, key, value))
        output, _ = attend(layer, *whole, mask, **rest)  # (rows, tokens, heads, size)
        return _exchange(output, 1, 2, ranks, name), None

    AttentionInterface.register(_NAME, attention)
    AttentionMaskInterface.register(_NAME, (lambda **_: None) if is_flash else rows.mask)
    parts: Iterable[Any] = module.modules()
    for part in parts:
        if hasattr(part, "config"):
            part.config._attn_implementation = _NAME
    module.register_forward_pre_hook(rows.take, with_kwargs=True, prepend=True)


def _exchange(
    tensor: torch.Tensor, divided: int, joined: int, ranks: int, group: Any
) -> torch.Tensor:
    """Divides a dimension over the ranks of a group, and joins their parts along another one."""
    parts = torch.stack(tensor.chunk(ranks, divided)).contiguous()
    sent = all_to_all_single_autograd(parts.flatten(0, 1), None, None, group)
    return torch.cat([*sent.unflatten(0, (ranks, -1))], joined)
