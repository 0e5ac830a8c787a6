"""Settings of a plan's blocks and loss, the same for every engine."""

from dataclasses import dataclass

from search_spaces.plan import (
    CompileMode,
    ExpertsKernel,
    Float8,
    Loss,
    MlpTiles,
    Plan,
    VocabMultiple,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockSettings:
    """Blocks that are recomputed in backward, the tensors that they save, and how all compile."""

    recomputed: tuple[int, ...]  # indices of blocks
    selective: tuple[int, ...] = ()  # of these, blocks that save outputs of matmuls and attention
    offloaded: tuple[int, ...] = ()  # whose saved tensors are on the host until backward needs them
    compile: bool = False  # every block; the compiler decides which tensors to save
    compile_mode: CompileMode = "default"
    budget: float = 1.0  # of what compiled blocks save: see `compile_blocks`
    float8: Float8 = "none"  # scales of matmuls in 8 bits: see `compute_in_float8`
    loss: Loss = "whole"  # computed by the model, or by its head: see `replace_loss`
    vocab_multiple: VocabMultiple = 1  # above 1, the head computes a whole loss too
    mlp_tiles: MlpTiles = 1  # each recomputed in backward: see `tile_mlps`
    experts_kernel: ExpertsKernel = "grouped_mm"  # transformers' own choice


def render_blocks(plan: Plan, blocks: int) -> BlockSettings:
    """Returns the recomputation settings of a plan for a model with this number of blocks."""
    recomputed = evenly_spaced(checkpointed_blocks(plan.checkpoint_ratio, blocks), blocks)
    selective = recomputed if plan.checkpoint_mode == "selective" else ()
    selective = selective or _spread(plan.selective_blocks, recomputed)
    offloaded = recomputed if plan.checkpoint_offload else ()
    full = tuple(index for index in recomputed if index not in selective)
    return BlockSettings(
        recomputed=recomputed,
        selective=selective,
        offloaded=offloaded or _spread(plan.offloaded_blocks, full),
        compile=plan.compile,
        compile_mode=plan.compile_mode,
        budget=plan.checkpoint_budget,
        float8=plan.float8,
        loss=plan.loss,
        vocab_multiple=plan.vocab_multiple,
        mlp_tiles=plan.mlp_tiles,
        experts_kernel=plan.experts_kernel,
    )


def _spread(chosen: int, blocks: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(blocks[at] for at in evenly_spaced(chosen, len(blocks)))


def checkpointed_blocks(ratio: float, blocks: int) -> int:
    """Returns the number of blocks that a checkpoint ratio recomputes, rounded half up."""
    return int(ratio * blocks + 0.5)


def evenly_spaced(chosen: int, blocks: int) -> tuple[int, ...]:
    """Returns the indices of `chosen` blocks, spread evenly over all blocks."""
    return tuple(
        index
        for index in range(blocks)
        if (index + 1) * chosen // blocks > index * chosen // blocks
    )
