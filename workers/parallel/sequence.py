"""Sequence parallelism: between split projections, each tensor rank has some of the tokens.

Only what flows from block to block is cut; masks and positions are those of the whole sequence,
which the projections' inputs are gathered to.

Source:
    Korthikanti et al. 2022, arXiv:2205.05198, section 4.2.2.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from workers.models.tensor_plan import TensorPlan
from workers.parallel.collectives import TensorRanks, gathered_alike, sliced
from workers.parallel.split_modules import sum_gradients

_SEQUENCE = 1  # the dimension of tokens in (samples, tokens, features)


def split_sequence(
    module: nn.Module, blocks: tuple[nn.Module, ...], plan: TensorPlan, ranks: TensorRanks
) -> None:
    """Cuts the sequence before the first block and gathers it behind the last, in place.

    The weights of what works on some tokens, such as norms, get a part of their gradient on
    each rank: it is summed.
    """
    names = {id(part): name for name, part in module.named_modules()}
    taken = {name for name, _ in plan.splits} | set(plan.summed)
    for block in blocks:
        for part in block.modules():
            if part._parameters and names[id(part)] not in taken:
                sum_gradients(part, ranks)

    def cut(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if args:
            return (sliced(args[0], ranks, _SEQUENCE), *args[1:]), kwargs
        states = sliced(kwargs["hidden_states"], ranks, _SEQUENCE)
        return args, kwargs | {"hidden_states": states}

    def gather(_: nn.Module, __: tuple[Any, ...], output: Any) -> Any:
        if isinstance(output, torch.Tensor):
            return gathered_alike(output, ranks, _SEQUENCE)
        return (gathered_alike(output[0], ranks, _SEQUENCE), *output[1:])

    blocks[0].register_forward_pre_hook(cut, with_kwargs=True)
    blocks[-1].register_forward_hook(gather)
