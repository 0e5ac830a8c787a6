"""Attention to packed samples by their starts, as kernels of flash attention compute it.

The kernels run only on CUDA. A stand-in of theirs, registered with transformers under a name of its
own, shows on any machine whether a model passes the starts on to its attention.
"""

from itertools import pairwise
from typing import Final

import torch
from torch.nn import functional
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import flash_attention_mask

STAND_IN: Final = "plimsoll_packed"


def _attend(
    _module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *_mask: object,
    cu_seq_lens_q: torch.Tensor | None = None,
    scaling: float | None = None,
    **_options: object,
) -> tuple[torch.Tensor, None]:
    """Computes causal attention within each sample, or within each row without their starts."""
    rows, heads, width, _size = query.shape
    flat = [part.transpose(0, 1).flatten(1, 2) for part in (query, key, value)]
    starts = range(0, rows * width + 1, width) if cu_seq_lens_q is None else cu_seq_lens_q.tolist()
    samples = []
    for start, end in pairwise(starts):
        of_query, of_key, of_value = (part[None, :, start:end] for part in flat)
        attended = functional.scaled_dot_product_attention(
            of_query,
            of_key,
            of_value,
            is_causal=True,
            scale=scaling,
            enable_gqa=heads != key.shape[1],
        )
        samples.append(attended[0])
    together = torch.cat(samples, dim=1).unflatten(1, (rows, width))
    return together.permute(1, 2, 0, 3), None


AttentionInterface.register(STAND_IN, _attend)
AttentionMaskInterface.register(STAND_IN, flash_attention_mask)
