"""Recomputation in detail: operators that run twice, and tensors that are saved."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from search_spaces.plan import CheckpointMode
from search_spaces.settings.blocks import BlockSettings, render_blocks
from tests.workers import fuzz
from tests.workers.fuzz import GLOBAL_BATCH, run_plan
from tests.workers.launch import Group
from tests.workers.values import a_plan
from workers.parallel.apply import wrap_blocks
from workers.plain_torch.selective import saving_contexts

WIDTH, BLOCKS, ROWS = 32, 4, 64
ALL = tuple(range(BLOCKS))


class Block(nn.Module):
    """Attention over rows, and two projections with a cheap operator between them."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(WIDTH, WIDTH, bias=False)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = self.mix(x).view(1, 4, ROWS, WIDTH // 4)
        mixed = nn.functional.scaled_dot_product_attention(heads, heads, heads).reshape(x.shape)
        x = x + torch.tanh(mixed)
        return torch.tanh(x + self.down(nn.functional.gelu(self.up(x))))


class Seen(TorchDispatchMode):
    """Counts operators by name, in the order of their first call."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[func.name()] += 1
        return func(*args, **(kwargs or {}))

    def forward_matmuls(self) -> int:
        """Counts matmuls of forward passes; backward only has `mm`."""
        return self.counts["aten::addmm"]

    def attentions(self) -> int:
        return self.counts["aten::_scaled_dot_product_flash_attention_for_cpu"]


def a_stack() -> tuple[nn.Sequential, tuple[Block, ...]]:
    torch.manual_seed(0)
    blocks = tuple(Block() for _ in range(BLOCKS))
    return nn.Sequential(*blocks), blocks


def operators_of_backward(
    picked: tuple[int, ...], mode: CheckpointMode = "full", *, offload: bool = False
) -> Seen:
    stack, blocks = a_stack()
    selective, offloaded = picked * (mode == "selective"), picked * offload
    settings = BlockSettings(recomputed=picked, selective=selective, offloaded=offloaded)
    wrap_blocks(stack, blocks, settings)
    loss = stack(torch.linspace(-1, 1, ROWS * WIDTH).reshape(ROWS, WIDTH)).square().mean()
    with Seen() as seen:
        loss.backward()
    return seen


@pytest.mark.parametrize("offload", [False, True])
def test_selective_recomputes_no_matmul_and_no_attention(offload: bool) -> None:
    none = operators_of_backward(())
    full = operators_of_backward(ALL, "full", offload=offload)
    selective = operators_of_backward(ALL, "selective", offload=offload)

    assert (none.forward_matmuls(), none.attentions()) == (0, 0)
    assert full.forward_matmuls() >= BLOCKS  # the last one of a block is not needed in backward
    assert full.attentions() == BLOCKS
    assert full.counts["aten::mm"] == none.counts["aten::mm"] + BLOCKS
    assert (selective.forward_matmuls(), selective.attentions()) == (0, 0)
    assert selective.counts["aten::mm"] == none.counts["aten::mm"]
    assert selective.counts["aten::gelu"] == BLOCKS  # what is cheap is computed again


def copies(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Returns the shapes of tensors that are copied from now on."""
    moved: list[tuple[int, ...]] = []
    copy: Callable[..., torch.Tensor] = torch.Tensor.copy_

    def counted(self: torch.Tensor, source: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if source.numel():  # torch 2.11 saves an empty tensor besides
            moved.append(tuple(source.shape))
        return copy(self, source, *args, **kwargs)

    monkeypatch.setattr(torch.Tensor, "copy_", counted)
    return moved


def test_what_is_offloaded_is_what_recomputation_starts_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    moved = copies(monkeypatch)
    stack, blocks = a_stack()
    settings = BlockSettings(recomputed=ALL, offloaded=ALL)
    wrap_blocks(stack, blocks, settings)
    stack(torch.ones(ROWS, WIDTH))

    assert moved == BLOCKS * [(ROWS, WIDTH)]  # no weight, nothing of the inside of a block


def test_each_block_is_recomputed_in_its_own_way(monkeypatch: pytest.MonkeyPatch) -> None:
    none, full = operators_of_backward(()), operators_of_backward(ALL)
    stack, blocks = a_stack()
    plan = a_plan(checkpoint_ratio=0.75, selective_blocks=1, offloaded_blocks=1)
    settings = render_blocks(plan, BLOCKS)
    wrap_blocks(stack, blocks, settings)
    moved = copies(monkeypatch)
    loss = stack(torch.ones(ROWS, WIDTH)).square().mean()
    monkeypatch.undo()
    with Seen() as seen:
        loss.backward()

    assert len({*settings.recomputed} - {*settings.selective} - {*settings.offloaded}) == 1
    assert moved == [(ROWS, WIDTH)]  # the input of one block
    assert seen.attentions() == 2  # of the offloaded block and the one recomputed whole
    assert 0 == none.attentions() < seen.attentions() < full.attentions() == BLOCKS
    assert seen.counts["aten::gelu"] == 3


@pytest.mark.parametrize("on_host", [False, True])
def test_what_is_kept_survives_a_change_in_place(on_host: bool) -> None:
    weight = torch.eye(4)
    x = torch.ones(4, 4)
    forward, recomputation = saving_contexts(on_host=on_host)
    with forward:
        first = torch.mm(x, weight)
        first[2:].add_(1)
        other = torch.ones(4, 4)
        other += torch.mm(x, weight)
    with recomputation:
        again = torch.mm(x, weight)
        beside = torch.mm(x, weight)

    assert torch.equal(again, x)
    assert torch.equal(beside, x)
    assert first.sum() == 24
    assert again.device == x.device


class InPlace(nn.Module):
    """A linear layer as in DeepSpeed's ZeRO-3, which adds the bias in place."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.matmul(self.inner.weight.t())  # three dimensions: not the product's own version
        y += self.inner.bias
        return torch.tanh(y)


@pytest.mark.parametrize("offload", [False, True])
def test_a_block_that_works_in_place_is_recomputed_right(offload: bool) -> None:
    x = torch.linspace(-1, 1, ROWS * WIDTH).reshape(1, ROWS, WIDTH)
    gradients = []
    for picked in ((), (0, 1)):
        torch.manual_seed(0)
        blocks = (InPlace(), InPlace())
        stack = nn.Sequential(*blocks)
        offloaded = picked * offload
        settings = BlockSettings(recomputed=picked, selective=picked, offloaded=offloaded)
        wrap_blocks(stack, blocks, settings)
        stack(x).square().mean().backward()
        gradients.append([weight.grad for weight in stack.parameters()])

    for plain, recomputed in zip(*gradients, strict=True):
        assert plain is not None
        assert recomputed is not None
        assert torch.equal(plain, recomputed)


@pytest.mark.thorough
def test_what_deepspeed_computes_in_place_is_recomputed_right(pair: Group, alone: Group) -> None:
    plan = a_plan(
        engine="deepspeed",
        zero_stage=3,
        checkpoint_ratio=1.0,
        checkpoint_mode="selective",
        accumulation=GLOBAL_BATCH // 4,
    )

    drawn = run_plan(pair, "bert", plan, fuzz.reference_losses(alone, "bert"))

    assert drawn.fault is None  # its linear layers have biases, which are not 0 from step 2 on
