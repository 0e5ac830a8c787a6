"""The stack of blocks cut into stages: each a copy of the model that keeps its own part."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace

from torch import nn

from search_spaces.render import PipelineSettings, TorchSettings
from search_spaces.stages import StageBlocks
from workers.models.built import BuiltModel
from workers.models.passing import Passage, Passing, Zeros, leaving_early
from workers.models.stack import Stack

Splits = tuple[tuple[str, str], ...]  # modules by name, and the style in which each is split

_ADAPTED = "base_model.model."  # where peft puts the model that it adapts


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A stage as it is cut: its own blocks in the model's own module, and how it is entered."""

    index: int
    is_last: bool
    model: BuiltModel
    passage: Passage


def cut(
    model: BuiltModel, stack: Stack, settings: PipelineSettings, rank: int, splits: Splits = ()
) -> list[Stage]:
    """The stages of a rank of the pipeline, which share no more than values with `model`.

    All names of parameters stay as they were. What a stage lacks is let go of as soon as nothing
    holds `model` any more.

    Args:
        model: The whole model.
        stack: Its parts.
        settings: Which blocks are of which stage.
        rank: Of the ranks of the pipeline.
        splits: How tensor ranks split the modules of the whole model.
    """
    model = replace(model, tensor_plan=splits)
    last = len(settings.stages) - 1
    return [
        _cut(model, stack, settings.stages[index], index=index, is_last=index == last)
        for index in range(rank, last + 1, settings.ranks)
    ]


def stage_settings(settings: TorchSettings, blocks: StageBlocks) -> TorchSettings:
    """The settings for a model that has these blocks alone."""
    chosen = set(settings.checkpoint.blocks)
    here = tuple(place for place, block in enumerate(blocks) if block in chosen)
    return replace(settings, checkpoint=replace(settings.checkpoint, blocks=here))


def _cut(
    model: BuiltModel, stack: Stack, blocks: StageBlocks, *, index: int, is_last: bool
) -> Stage:
    values = (*model.module.parameters(), *model.module.buffers())
    module = copy.deepcopy(model.module, {id(value): value for value in values})
    passage = Passage()
    own = tuple(module.get_submodule(stack.blocks[block]) for block in blocks)
    acts = {blocks[0] - 1: lambda _: passage.received(), blocks[-1] + 1: passage.leave}
    for place, name in enumerate(stack.blocks):
        if place not in blocks:
            block = module.get_submodule(name)
            module.set_submodule(name, Passing(block, stack.form, acts.get(place)))
    for name in stack.before if index > 0 else ():
        module.set_submodule(name, Zeros(passage))
    for name in stack.behind if not is_last else ():
        module.set_submodule(name, nn.Identity())
    if not is_last:
        leaving_early(module, passage)
    return Stage(
        index=index,
        is_last=is_last,
        model=replace(model, module=module, blocks=own, tensor_plan=_present(module, model)),
        passage=passage,
    )


def _present(module: nn.Module, model: BuiltModel) -> Splits:
    """Of the model's splits those of modules that the stage has; patterns are left as they are."""
    weights = tuple(name for name, _ in module.named_parameters())
    whole = dict(model.module.named_modules())
    return tuple(
        (name.removeprefix(_ADAPTED), style)  # as patterns name them
        for name, style in model.tensor_plan
        if name not in whole or any(weight.startswith(f"{name}.") for weight in weights)
    )
