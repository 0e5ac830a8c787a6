"""A training pass of a model: calls of its blocks, with their hooks or past them, and gradients.

A model that calls `block.forward(...)` computes the same, but what FSDP2 and torch.compile hang
on the call of a module does not happen.
"""

import contextlib
from typing import Any

import torch
from torch import nn

from workers.models.built import seeded
from workers.models.fake_memory import FakeMemory, without_fake_tensor_logs
from workers.models.stack import MakeInputs, find_blocks
from workers.models.stack_trace import without_memory
from workers.models.user_code import UserCodeError, user_code_errors
from workers.plain_torch.loss import loss_of, on_device


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


def training_facts(module: nn.Module, inputs: MakeInputs) -> dict[str, Any]:
    """Returns what a training pass without memory shows, as fields of `ModelFacts`.

    These are `bypasses_hooks`, if the forward calls blocks past their hooks, and `unused_weights`,
    which get no gradient. A pass that fails tells what it showed until then.

    Args:
        module: A whole model.
        inputs: Makes a batch for its forward.
    """
    past: list[nn.Module] = []
    unused: list[str] = []
    with (
        contextlib.suppress(UserCodeError),
        user_code_errors(type(module).__name__),
        seeded(0),
        torch.enable_grad(),
    ):
        skeleton, batch = without_memory(module).train(), inputs()
        past = watch_blocks(skeleton)
        with FakeMemory(), without_fake_tensor_logs():
            loss_of(skeleton(**on_device(batch, torch.device("meta")))).backward()
        without = {name for name, weight in skeleton.named_parameters() if weight.grad is None}
        trained = (name for name, weight in module.named_parameters() if weight.requires_grad)
        unused = [name for name in trained if name in without]
    return {"bypasses_hooks": bool(past), "unused_weights": tuple(unused)}
