"""User models with faults: `make` returns one with a chosen fault.

A fault occurs on one rank or on all, in one forward pass or in the backward pass after it.
"""

import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.modeling_outputs import SequenceClassifierOutput

WIDTH, LAYERS = 16, 2
HUGE_BYTES = 2**30  # four times the budget of the tests
SAID = "the sea is rough today"


class Net(nn.Module):
    """Linear layers; `act` changes the loss in forward pass `call`, counted from 1."""

    def __init__(self, width: int, layers: int, call: int, act: Callable[[Any], Any]) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(width, width) for _ in range(layers)])
        self.call, self.act, self.calls = call, act, 0
        self.shift: nn.Parameter | None = None

    def forward(self, x: torch.Tensor) -> Any:
        if self.shift is not None:
            x = x + self.shift
        for layer in self.layers:
            x = torch.tanh(layer(x))
        self.calls += 1
        loss = (x - 1).square().mean()
        return self.act(loss) if self.calls == self.call else loss


class Late(Net):
    """`Net` that trains without a fault: `act` changes its evaluation or checkpoint."""

    def __init__(self, width: int, layers: int, where: str, act: Callable[[Any], Any]) -> None:
        super().__init__(width, layers, 0, act)
        self.where = where

    def forward(self, x: torch.Tensor) -> Any:
        loss = super().forward(x)
        return self.act(loss) if self.where == "evaluation" and not self.training else loss

    def get_extra_state(self) -> Any:
        return self.act(torch.zeros(())) if self.where == "checkpoint" else None


class _Backward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, loss: torch.Tensor, act: Callable[[Any], Any]) -> torch.Tensor:
        ctx.act = act
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return ctx.act(gradients[0]), None


def _allocate(value: Any) -> Any:
    return value + torch.ones(HUGE_BYTES // 4, device=value.device)[0]


def _beyond(value: Any) -> Any:
    # what a label or a token out of range is to a GPU: an assertion that stops all it does
    row = torch.tensor([9], device=value.device)
    return value + torch.zeros(4, device=value.device)[row].sum()


def _complain(_: Any) -> Any:
    raise LookupError(f"{SAID}\nand this line is for the trace alone")


def _complain_and_keep(value: Any) -> Any:
    try:
        _complain(value)
    except LookupError as error:
        kept = error  # in this frame, which the error's traceback holds: a cycle
        raise kept from None


def _peek(value: Any) -> Any:
    return value * (1.0 if float(value) < 1e9 else 2.0)


class Unspeakable(BaseException):
    """An exception whose text raises."""

    def __str__(self) -> str:
        raise LookupError(SAID)


def _unspeakable(_: Any) -> Any:
    raise Unspeakable


ACTS: dict[str, Callable[[Any], Any]] = {
    "none": lambda value: value,
    "allocates": _allocate,
    "beyond": _beyond,
    "raises": _complain,
    "unspeakable": _unspeakable,
    "keeps": _complain_and_keep,
    "peeks": _peek,
    "exits": lambda _: sys.exit("user code called exit"),
    "nan": lambda value: value * float("nan"),
    "zero": lambda value: value * 0,
    "infinite": lambda value: value + float("inf"),
    "keys": lambda value: {"loss_lm": value, "loss_cls": value},
    "vector": lambda value: value * torch.ones(3),
}


def make(
    *,
    fault: str = "none",
    where: str = "forward",
    rank: int | None = None,
    call: int = 1,
    width: int = WIDTH,
    layers: int = LAYERS,
    uneven: bool = False,
    by_rank: bool = False,
) -> tuple[nn.Module, Callable[[tuple[int, ...]], Mapping[str, torch.Tensor]]]:
    """Returns a model with a fault.

    Args:
        fault: One of `ACTS`.
        where: forward, backward, build, data, evaluation, checkpoint or adapter.
        rank: The only rank with the fault; None for all ranks.
        call: Forward pass, or the backward pass after it, or batch with the fault.
        width: Width of the layers.
        layers: Number of layers.
        uneven: One parameter more, so that their number is odd.
        by_rank: Each rank but the first has other weights, as if it drew them by a generator of its
            own.
    """
    mine = rank is None or (dist.is_initialized() and dist.get_rank() == rank)
    act = ACTS[fault] if mine else ACTS["none"]
    if where == "build":
        act(torch.zeros(()))
    net = Net(
        width,
        layers,
        call,
        {"forward": act, "backward": lambda loss: _Backward.apply(loss, act)}.get(
            where, ACTS["none"]
        ),
    )
    if uneven:
        net.shift = nn.Parameter(torch.zeros(1))
    if where == "adapter":  # what is trained takes no part in the loss
        net.requires_grad_(requires_grad=False)
        net.adapter = nn.Parameter(torch.ones(1))
        net.act, net.call = lambda loss: loss + 0 * net.adapter.sum(), 1
    if by_rank:
        for weight in net.parameters():
            weight.data += dist.get_rank() if dist.is_initialized() else 0
    if where in ("evaluation", "checkpoint"):
        net = Late(width, layers, where, act)
    made = 0

    def batch(numbers: tuple[int, ...]) -> Mapping[str, torch.Tensor]:
        nonlocal made
        made += 1
        x = torch.stack([torch.full((width,), 1.0 / (1 + number)) for number in numbers])
        if where == "data" and made == call:
            act(x)
        return {"x": x}

    return net, batch


def make_answering(
    *, says_targets: bool = False
) -> tuple[nn.Module, Callable[[tuple[int, ...]], Mapping[str, Any]]]:
    """Returns a Llama that learns answers alone, of unequal length: few labels, or many, a sample.

    Args:
        says_targets: The model is hidden in a module of its own, and batches count their labels.
    """
    config = LlamaConfig(
        hidden_size=WIDTH,
        intermediate_size=2 * WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=2,
        vocab_size=64,
        initializer_range=0.2,
    )
    net = LlamaForCausalLM(config)

    def batch(numbers: tuple[int, ...]) -> Mapping[str, Any]:
        lengths = [4 + 3 * (number % 4) for number in numbers]
        rows = torch.arange(max(lengths))
        tokens = torch.stack([(7 * number + rows) % 64 for number in numbers])
        kept = rows[None] < torch.tensor(lengths)[:, None]
        answers = kept & (rows[None] >= torch.tensor(numbers)[:, None] % 3)
        labels = torch.where(answers, tokens, -100)
        inputs = {"input_ids": tokens, "attention_mask": kept.long(), "labels": labels}
        if says_targets:
            return inputs | {"targets": int((labels[:, 1:] != -100).sum())}
        return inputs

    return (Hidden(net) if says_targets else net), batch


class Hidden(nn.Module):
    """A model whose class tells nothing of its labels."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, **inputs: torch.Tensor) -> Any:
        return self.net(**inputs).loss


class Weights(nn.Module):
    """Layers, and weights of which some reach another output and some nothing."""

    def __init__(self) -> None:
        super().__init__()
        blocks = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(2 * LAYERS)]
        self.layers = nn.ModuleList(blocks)
        self.other, self.leftover = nn.Linear(WIDTH, 1), nn.Linear(WIDTH, 1)

    def forward(self, x: torch.Tensor) -> Any:
        for layer in self.layers:
            x = layer(x)
        return SequenceClassifierOutput(loss=(x - 1).square().mean(), logits=self.other(x))


def make_weights() -> tuple[nn.Module, Callable[[tuple[int, ...]], Mapping[str, Any]]]:
    """Returns `Weights` and its batches."""
    rows = torch.linspace(0, 1, 64)[:, None].expand(64, WIDTH)
    return Weights(), lambda numbers: {"x": rows[[number % 64 for number in numbers]]}
