"""Pipeline stages: copies of the model that each keep their own blocks."""

import copy
from dataclasses import dataclass, replace

from torch import nn

from search_spaces.settings.pipeline_partition import StageBlocks
from search_spaces.settings.render import PipelineSettings, TorchSettings
from search_spaces.settings.schedules import SCHEDULES
from workers.models.built import BuiltModel
from workers.models.stack import Stack
from workers.models.stage_placeholders import (
    BlockPlaceholder,
    EmbeddingPlaceholder,
    HiddenStateChannel,
    return_outgoing,
)

Splits = tuple[tuple[str, str], ...]  # modules by name, and the style in which each is split

_PEFT_PREFIX = "base_model.model."  # where peft puts the adapted model


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A stage: a copy of the model with its own blocks, and the passage of hidden states."""

    index: int
    is_last: bool
    model: BuiltModel
    passage: HiddenStateChannel


def cut_stages(
    model: BuiltModel, stack: Stack, settings: PipelineSettings, rank: int, splits: Splits = ()
) -> list[Stage]:
    """Returns the stages of a pipeline rank, which share only values with `model`.

    Names of parameters stay. Weights that a stage lacks are freed once nothing references
    `model` any more.

    Args:
        model: The whole model.
        stack: Its parts.
        settings: The blocks of each stage.
        rank: Index among the ranks of the pipeline.
        splits: How tensor ranks split the modules of the whole model.
    """
    model = replace(model, tensor_plan=splits)
    last = len(settings.stages) - 1
    return [
        _cut(model, stack, settings.stages[index], index=index, is_last=index == last)
        for index in SCHEDULES[settings.schedule].stages_of(rank, settings.ranks)
    ]


def stage_settings(settings: TorchSettings, blocks: StageBlocks) -> TorchSettings:
    """Returns the settings of a model that has only these blocks."""
    whole = settings.blocks

    def local(chosen: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(index for index, block in enumerate(blocks) if block in chosen)

    of_stage = replace(
        whole,
        recomputed=local(whole.recomputed),
        selective=local(whole.selective),
        offloaded=local(whole.offloaded),
    )
    return replace(settings, blocks=of_stage)


def _cut(
    model: BuiltModel, stack: Stack, blocks: StageBlocks, *, index: int, is_last: bool
) -> Stage:
    values = (*model.module.parameters(), *model.module.buffers())
    module = copy.deepcopy(model.module, {id(value): value for value in values})
    passage = HiddenStateChannel()
    own = tuple(module.get_submodule(stack.blocks[block]) for block in blocks)
    # the placeholder before the stage's blocks receives, the one behind them ends the pass
    actions = {blocks[0] - 1: lambda _: passage.received(), blocks[-1] + 1: passage.leave}
    for index_in_stack, name in enumerate(stack.blocks):
        if index_in_stack not in blocks:
            block = module.get_submodule(name)
            module.set_submodule(
                name, BlockPlaceholder(block, stack.form, actions.get(index_in_stack))
            )
    for name in stack.before if index > 0 else ():
        module.set_submodule(name, EmbeddingPlaceholder(passage))
    for name in stack.behind if not is_last else ():
        module.set_submodule(name, nn.Identity())
    if not is_last:
        return_outgoing(module, passage)
    return Stage(
        index=index,
        is_last=is_last,
        model=replace(model, module=module, blocks=own, tensor_plan=_present(module, model)),
        passage=passage,
    )


def _present(module: nn.Module, model: BuiltModel) -> Splits:
    """The model's splits of modules that the stage has; patterns stay."""
    weights = tuple(name for name, _ in module.named_parameters())
    whole = dict(model.module.named_modules())
    return tuple(
        (name.removeprefix(_PEFT_PREFIX), style)  # patterns have no prefix
        for name, style in model.tensor_plan
        if name not in whole or any(weight.startswith(f"{name}.") for weight in weights)
    )
