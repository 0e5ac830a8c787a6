"""Division of a model over tensor, expert and data ranks by transformers' own mesh."""

import os
import shutil
import socket
import tempfile
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor


def load_divided(
    model: Any, blocks: Sequence[nn.Module], **degrees: Any
) -> tuple[nn.Module, list[nn.Module]]:
    """Returns a model whose weights transformers divides over all ranks, and its blocks in order.

    Transformers divides weights as it loads them, so that they go through a temporary folder, one
    on each host. To train weights that are in a folder or on the Hub already, call
    `from_pretrained` with this `distributed_config` yourself.

    Args:
        model: A whole model of transformers in fp32, the same on all ranks.
        blocks: Its repeated blocks.
        degrees: Arguments of `DistributedConfig`, such as `fsdp_size`, `tp_size` and `ep_size`.
    """
    from transformers.distributed import DistributedConfig

    names = {id(part): name for name, part in model.named_modules()}
    folder: str | None = None
    if int(os.environ["LOCAL_RANK"]) == 0:
        folder = tempfile.mkdtemp()
        model.save_pretrained(folder)
    folders: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(folders, (socket.gethostname(), folder))
    divided = type(model).from_pretrained(
        {host: saved for host, saved in folders if saved}[socket.gethostname()],
        dtype=torch.float32,
        attn_implementation=model.config._attn_implementation,
        distributed_config=DistributedConfig(**degrees),
    )
    for weight in divided.parameters():
        if isinstance(weight, DTensor):
            weight.register_post_accumulate_grad_hook(_lay_out_gradient)
    dist.barrier()
    if folder is not None:
        shutil.rmtree(folder)
    return divided, [divided.get_submodule(names[id(block)]) for block in blocks]


def _lay_out_gradient(weight: torch.Tensor) -> None:
    """Gives a gradient the layout of its weight, which that of a split embedding has not."""
    if isinstance(weight, DTensor) and isinstance(weight.grad, DTensor):
        weight.grad = weight.grad.redistribute(placements=weight.placements)
