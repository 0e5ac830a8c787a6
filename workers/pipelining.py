"""From a model to the stages of this rank, parallelised and connected."""

from __future__ import annotations

from functools import partial

import torch
import torch.distributed as dist
from torch import nn

from search_spaces.render import PipelineSettings, TorchSettings
from search_spaces.spec.train_section import TrainSpec
from workers.engines.conveyor import Conveyor
from workers.engines.pipeline_training import PipelineTraining
from workers.engines.stage_pass import StagePass
from workers.engines.tied import TiedWeights
from workers.engines.update import make_update
from workers.mesh import Mesh
from workers.models.built import BuiltModel
from workers.models.function import PROBED
from workers.models.stack import Stack, find_stack
from workers.models.stack_trace import HiddenShape
from workers.models.tensor_plan import tensor_plan
from workers.optimizers import make_optimizer
from workers.parallel.apply import parallelize
from workers.parallel.pipeline import Splits, Stage, cut, stage_settings


def build_pipeline(
    model: BuiltModel, settings: TorchSettings, train: TrainSpec, mesh: Mesh, device: torch.device
) -> PipelineTraining:
    """Applies a plan with a pipeline to the model and makes its optimizer.

    Raises:
        NoStackError: If the model cannot be cut into stages; rules refuse that beforehand.
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
        conveyor=Conveyor(
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
    """How tensor ranks split the whole model, module by module.

    A stage by itself does not show it: which weights are tied is to be seen in the whole alone.
    """
    if settings.tensor == 1:
        return model.tensor_plan
    plan = tensor_plan(model.module, dict(model.tensor_plan))
    summed = ((name, "replicated_with_grad_allreduce") for name in plan.summed)
    return (*plan.splits, *plan.vocabulary, *summed)


def _parallel_pass(
    stage: Stage, settings: TorchSettings, mesh: Mesh, device: torch.device
) -> StagePass:
    assert settings.pipeline is not None
    own = stage_settings(settings, settings.pipeline.stages[stage.index])
    module = parallelize(stage.model, own, mesh, device)
    return StagePass(module, stage.passage, settings, device, is_last=stage.is_last)


def _tied_weights(
    stages: list[Stage],
    stack: Stack,
    settings: PipelineSettings,
    mesh: Mesh,
    device: torch.device,
) -> TiedWeights | None:
    """What this rank shares with the other end of the pipeline, None if nothing."""
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
    """FSDP2 computes all of a block in one precision; autocast leaves what flows between blocks."""
    if settings.wrapper != "fsdp2":
        return None
    return {"bf16": torch.bfloat16, "fp16": torch.float16}.get(settings.compute)
