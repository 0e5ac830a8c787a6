"""Recomputation, tiles and compilation of a model's repeated blocks."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    apply_activation_checkpointing,
    checkpoint_wrapper,
    offload_wrapper,
)
from torch.utils.checkpoint import checkpoint

_MLPS = {"mlp", "ffn", "feed_forward", "densereludense"}  # names in models of transformers


def checkpoint_blocks(
    module: nn.Module,
    blocks: Sequence[nn.Module],
    recomputed: Sequence[int],
    *,
    offloaded: Sequence[int] = (),
    contexts: Mapping[int, Callable[[], Any]] | None = None,
) -> list[nn.Module]:
    """Wraps the chosen blocks inside `module`; returns all blocks, wrapped or not.

    Args:
        module: The model.
        blocks: Its repeated blocks.
        recomputed: Indices of the blocks to recompute in backward.
        offloaded: Indices of those that move to host memory what they save: the input, from which
            the recomputation starts, and the tensors that selective checkpointing saves.
        contexts: Contexts of selective checkpointing by index; other blocks save their input alone.
    """
    chosen = {id(blocks[index]): index for index in recomputed}
    wrapped: dict[int, nn.Module] = {}

    def wrap(block: nn.Module) -> nn.Module:
        index, options = chosen[id(block)], dict[str, Any]()
        if contexts and index in contexts:
            options["context_fn"] = contexts[index]
        recomputing = checkpoint_wrapper(block, **options)
        wrapped[id(block)] = offload_wrapper(recomputing) if index in offloaded else recomputing
        return wrapped[id(block)]

    if chosen:
        apply_activation_checkpointing(
            module, checkpoint_wrapper_fn=wrap, check_fn=lambda block: id(block) in chosen
        )
    return [wrapped.get(id(block), block) for block in blocks]


def tile_mlps(blocks: Sequence[nn.Module], tiles: int) -> int:
    """Has the MLPs of blocks compute tiles of the sequence one by one, in place.

    Each tile is recomputed in backward, so that the activations of one tile are in memory at a
    time. Autograd adds the gradients of the tiles, and hands each weight one: neither DDP, FSDP2
    nor ZeRO notice, as they do with tiles that run backward on their own.

    Args:
        blocks: The model's repeated blocks.
        tiles: Their number; some are empty if a sequence has fewer tokens, as the ranks of ZeRO-3
            have to gather weights equally often, whatever their lengths.

    Returns:
        The number of MLPs that were found by their names, each of one tensor.

    Source:
        deepspeed/runtime/sequence_parallel/ulysses_sp.py, TiledMLP (0.19.8).
    """
    mlps = [
        part
        for block in blocks
        for name, part in block.named_modules()
        if name.rpartition(".")[2].lower() in _MLPS
    ]
    for mlp in mlps:
        mlp.forward = partial(_by_tiles, mlp.forward, tiles)
    return len(mlps)


def _by_tiles(
    forward: Callable[[torch.Tensor], torch.Tensor], tiles: int, hidden: torch.Tensor
) -> torch.Tensor:
    parts = hidden.tensor_split(tiles, dim=-2)
    outputs = [checkpoint(forward, part.contiguous(), use_reentrant=False) for part in parts]
    return torch.cat(outputs, dim=-2)


def has_float8_sizes(layer: nn.Module) -> bool:
    """Returns True if torchao can compute a layer in 8 bits: a plain one, of sizes that fit.

    Source:
        `torch._scaled_mm` (2.13), whose columns and inner sizes must divide 16.
    """
    hooked = layer._forward_hooks or layer._forward_pre_hooks  # which a new layer would lose
    if type(layer) is not nn.Linear or hooked:
        return False
    return layer.in_features % 16 == layer.out_features % 16 == 0


def compute_in_float8(blocks: Sequence[nn.Module], recipe: str) -> None:
    """Has the linear layers of blocks multiply in 8 bits, forward and backward, in place.

    Each has the weight that it had. Without a GPU the products are emulated in their own type.

    Args:
        blocks: The model's repeated blocks, not wrapped yet.
        recipe: torchao's: "tensorwise" has a scale for each tensor, "rowwise" for each row.

    Source:
        torchao/float8/config.py (0.18): `Float8LinearConfig.from_recipe_name`.
    """
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    config = replace(
        Float8LinearConfig.from_recipe_name(recipe),
        emulate=not torch.cuda.is_available(),
        pad_inner_dim=True,  # tokens of a micro-batch, where they do not divide 16
    )
    for block in blocks:
        convert_to_float8_training(
            block, config=config, module_filter_fn=lambda layer, _: has_float8_sizes(layer)
        )


def compile_blocks(blocks: Sequence[nn.Module], *, mode: str, budget: float = 1.0) -> None:
    """Marks each block for compilation at its first call; equal blocks share compiled code.

    Torch compiles for the first input shape, and once more for any shape when a second one comes.

    Args:
        blocks: The model's repeated blocks.
        mode: Of torch.compile.
        budget: Share of the activations that blocks save for backward, between those of full
            recomputation and those of the compiler's choice.

    Source:
        torch/_functorch/config.py, activation_memory_budget (2.13): of this process, so it is set
        for each compilation alone.
    """
    reset_compiler()  # a failed run in this process may have left compiled code
    options: dict[str, Any] = {"mode": mode}
    if budget < 1:
        options = {"backend": partial(_compile_within, mode, budget)}
    for block in blocks:
        block.compile(**options)


def _compile_within(mode: str, budget: float, graph: Any, inputs: Any) -> Any:
    from torch._functorch import config
    from torch._inductor import list_mode_options
    from torch._inductor.compile_fx import compile_fx

    with config.patch(activation_memory_budget=budget):
        return compile_fx(graph, inputs, config_patches=list_mode_options(mode))


def reset_compiler() -> None:
    """Drops compiled code and the tensors that its guards hold; callable at any time."""
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()
