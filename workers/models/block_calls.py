"""Calls of a model's blocks: by the module, with its hooks, or past them by its forward.

A model that calls `block.forward(...)` computes the same, but what FSDP2 and torch.compile hang
on the call of a module does not happen.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import nn

from workers.models.experts import GroupedProducts
from workers.models.fake_memory import FakeMemory, without_fake_tensor_logs
from workers.models.stack import MakeInputs, find_blocks
from workers.models.stack_trace import without_memory
from workers.models.user_code import UserCodeError, user_code_errors
from workers.plain_torch.loss import on_device


def watch_blocks(module: nn.Module) -> list[nn.Module]:
    """Returns a list that fills with the blocks whose forward runs without their hooks.

    Args:
        module: A model that is thrown away afterwards: its blocks stay watched.
    """
    past: list[nn.Module] = []
    called: set[nn.Module] = set()
    for block in find_blocks(module):
        block.register_forward_pre_hook(lambda entered, _: called.add(entered))
        block.forward = _watched(block, called, past)
    return past


def _watched(block: nn.Module, called: set[nn.Module], past: list[nn.Module]) -> Any:
    forward = block.forward

    def watched(*args: Any, **kwargs: Any) -> Any:
        if block not in called:
            past.append(block)
        called.discard(block)
        return forward(*args, **kwargs)

    return watched


def bypasses_hooks(module: nn.Module, inputs: MakeInputs) -> bool:
    """Tells if a forward pass without memory calls blocks past their hooks.

    A pass that fails tells what it showed until then.

    Args:
        module: A whole model.
        inputs: Makes a batch for its forward.
    """
    past: list[nn.Module] = []
    with contextlib.suppress(UserCodeError), user_code_errors(type(module).__name__):
        skeleton, batch = without_memory(module), inputs()
        on_meta = on_device(batch, torch.device("meta"))
        past = watch_blocks(skeleton)
        fake = FakeMemory()
        with fake, GroupedProducts(), without_fake_tensor_logs():
            skeleton(**on_meta)
    return bool(past)
