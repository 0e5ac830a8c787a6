"""Weights, gradients and optimizer states split over ranks: DeepSpeed's ZeRO.

Importing this module imports DeepSpeed: see `zero_features.load_deepspeed`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import deepspeed
import torch
from deepspeed.ops.adam import DeepSpeedCPUAdam
from deepspeed.utils import groups
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from search_spaces.render import DeepSpeedSettings
from search_spaces.spec.train_section import TrainSpec
from workers.engines.optimizers import make_optimizer
from workers.models.built import BuiltModel
from workers.parallel.checkpoint import checkpoint_blocks
from workers.parallel.compiling import compile_blocks

OptimizerMaker = Callable[[nn.Module], torch.optim.Optimizer]
SchedulerMaker = Callable[[torch.optim.Optimizer], LRScheduler]
Engine = Any  # deepspeed.DeepSpeedEngine, which has no types


def make_engine(
    model: BuiltModel,
    settings: DeepSpeedSettings,
    device: torch.device,
    optimizer_of: OptimizerMaker,
    scheduler_of: SchedulerMaker | None,
) -> Engine:
    """The model as its plan wants it, in DeepSpeed's engine.

    Recomputation and compilation come first, as under engine `torch`; DeepSpeed then converts
    the weights, splits them and hooks into the modules. A `ZeroWorld` must be open. AutoTP cuts
    whole weights, which lie in host memory until each rank has its slices on the device.
    """
    blocks = checkpoint_blocks(model.module, model.blocks, settings.checkpoint)
    if settings.compile:
        compile_blocks(blocks)
    module = model.module
    splits = settings.zero_stage == 3 or settings.tensor > 1
    weights_on = torch.device("cpu") if splits else device
    model.initial.materialise(module, device, weights_on=weights_on)
    module.train()
    engine, _, _, _ = deepspeed.initialize(
        model=module,
        optimizer=optimizer_of(module),
        mpu=groups if settings.tensor > 1 else None,
        lr_scheduler=scheduler_of,
        config=settings.config,
    )
    if settings.tensor > 1:
        # ranks that split a block must drop the same of what they share
        torch.manual_seed(groups.get_data_parallel_rank())
    return engine


def optimizer_maker(settings: DeepSpeedSettings, train: TrainSpec) -> OptimizerMaker:
    """How a plan's optimizer is made: on the host where its states lie there."""

    def on_host(module: nn.Module) -> torch.optim.Optimizer:
        optimizer: torch.optim.Optimizer = DeepSpeedCPUAdam(
            [weight for weight in module.parameters() if weight.requires_grad],
            lr=train.learning_rate,
            weight_decay=train.weight_decay,
            adamw_mode=True,
        )
        return optimizer

    def on_device(module: nn.Module) -> torch.optim.Optimizer:
        return make_optimizer(module, settings.optimizer, train)

    return on_host if settings.host_optimizer else on_device
