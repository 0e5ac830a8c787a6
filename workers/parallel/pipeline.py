"""Pipeline stages: copies of the model that each keep their own blocks."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from functools import partial

import torch
import torch.distributed as dist
from torch import nn

from search_spaces.settings.pipeline_partition import StageBlocks
from search_spaces.settings.render import PipelineSettings, TorchSettings
from search_spaces.spec.sections import TrainSpec
from workers.engines.optimizer_step import make_update
from workers.engines.optimizers import make_optimizer
from workers.engines.pipeline import PipelineRunner, PipelineTraining
from workers.engines.stage_module import StageModule, TiedWeights
from workers.models.built import BuiltModel
from workers.models.function import PROBED
from workers.models.stack import Stack, find_stack
from workers.models.stack_trace import HiddenShape
from workers.models.stage_placeholders import Passage, Passing, Zeros, leaving_early
from workers.models.tensor_plan import tensor_plan
from workers.parallel.apply import parallelize
from workers.process_groups import Mesh

Splits = tuple[tuple[str, str], ...]  # modules by name, and the style in which each is split

_PEFT_PREFIX = "base_model.model."  # where peft puts the adapted model


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A stage: a copy of the model with its own blocks, and the passage of hidden states."""

    index: int
    is_last: bool
    model: BuiltModel
    passage: Passage


def cut(
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
        for index in range(rank, last + 1, settings.ranks)
    ]


def stage_settings(settings: TorchSettings, blocks: StageBlocks) -> TorchSettings:
    """Returns the settings of a model that has only these blocks."""
    chosen = set(settings.checkpoint.blocks)
    local = tuple(index for index, block in enumerate(blocks) if block in chosen)
    return replace(settings, checkpoint=replace(settings.checkpoint, blocks=local))


def _cut(
    model: BuiltModel, stack: Stack, blocks: StageBlocks, *, index: int, is_last: bool
) -> Stage:
    values = (*model.module.parameters(), *model.module.buffers())
    module = copy.deepcopy(model.module, {id(value): value for value in values})
    passage = Passage()
    own = tuple(module.get_submodule(stack.blocks[block]) for block in blocks)
    # the placeholder before the stage's blocks receives, the one behind them ends the pass
    actions = {blocks[0] - 1: lambda _: passage.received(), blocks[-1] + 1: passage.leave}
    for index_in_stack, name in enumerate(stack.blocks):
        if index_in_stack not in blocks:
            block = module.get_submodule(name)
            module.set_submodule(name, Passing(block, stack.form, actions.get(index_in_stack)))
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
    """The model's splits of modules that the stage has; patterns stay."""
    weights = tuple(name for name, _ in module.named_parameters())
    whole = dict(model.module.named_modules())
    return tuple(
        (name.removeprefix(_PEFT_PREFIX), style)  # patterns have no prefix
        for name, style in model.tensor_plan
        if name not in whole or any(weight.startswith(f"{name}.") for weight in weights)
    )


def build_pipeline(
    model: BuiltModel, settings: TorchSettings, train: TrainSpec, mesh: Mesh, device: torch.device
) -> PipelineTraining:
    """Applies a plan with a pipeline to the model and makes its optimizer.

    Raises:
        NoStackError: If the model cannot be cut into stages; rules refuse such plans earlier.
    """
    pipeline = settings.pipeline
    assert pipeline is not None
    maker = model.batch_maker
    stack = find_stack(model.module, None if maker is None else partial(maker, PROBED))
    stages = cut(model, stack, pipeline, mesh.place.stage, _named_splits(model, settings))
    passes = {stage.index: _parallel_pass(stage, settings, mesh, device) for stage in stages}
    tied = _tied_weights(stages, stack, pipeline, mesh, device)
    is_first = mesh.place.stage == 0
    module = nn.ModuleList(passes.values()).train()
    optimizer = make_optimizer(module, settings.optimizer, train)
    counted_elsewhere = tied.weights if tied is not None and not is_first else ()
    return PipelineTraining(
        module=module,
        conveyor=PipelineRunner(
            passes,
            pipeline,
            HiddenShape(model.module, stack.blocks[0], stack.form),
            _sent_as(settings),
            mesh.devices.get_group("pipeline"),
            device,
        ),
        tied=tied,
        update=make_update(
            optimizer, train, settings.compute, mesh, device, counted_elsewhere=counted_elsewhere
        ),
        settings=settings,
        device=device,
        data=mesh.size("replicate", "shard"),
        counts=mesh.place.tensor == 0,
        writes=mesh.is_first_replica,
        pads=model.batch_maker is None,
    )


def _named_splits(model: BuiltModel, settings: TorchSettings) -> Splits:
    # from the whole model, since a stage does not show which weights are tied
    if settings.tensor == 1:
        return model.tensor_plan
    plan = tensor_plan(model.module, dict(model.tensor_plan))
    summed = ((name, "replicated_with_grad_allreduce") for name in plan.summed)
    return (*plan.splits, *plan.vocabulary, *summed)


def _parallel_pass(
    stage: Stage, settings: TorchSettings, mesh: Mesh, device: torch.device
) -> StageModule:
    assert settings.pipeline is not None
    own = stage_settings(settings, settings.pipeline.stages[stage.index])
    module = parallelize(stage.model, own, mesh, device)
    return StageModule(module, stage.passage, settings, device, is_last=stage.is_last)


def _tied_weights(
    stages: list[Stage],
    stack: Stack,
    settings: PipelineSettings,
    mesh: Mesh,
    device: torch.device,
) -> TiedWeights | None:
    """Weights that this rank shares with the other end of the pipeline, None without any."""
    group: dist.ProcessGroup = mesh.devices.get_group("pipeline")
    for stage in stages:
        weights = dict(stage.model.module.named_parameters())
        is_first = stage.index == 0
        if stack.tied and (is_first or stage.is_last):
            return TiedWeights(
                weights=tuple(weights[names[0 if is_first else 1]] for names in stack.tied),
                peer=settings.ranks - 1 if is_first else 0,
                group=group,
                device=device,
            )
    return None


def _sent_as(settings: TorchSettings) -> torch.dtype | None:
    # FSDP2 computes whole blocks in one precision; autocast does not cast between blocks
    if settings.wrapper != "fsdp2":
        return None
    return {"bf16": torch.bfloat16, "fp16": torch.float16}.get(settings.compute)
