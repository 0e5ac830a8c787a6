"""Engine `deepspeed`: its optimizer step, and how much memory its states take."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import nn

from search_spaces.render import DeepSpeedSettings
from search_spaces.spec.train_section import TrainSpec
from workers.data.collate import MicroBatch
from workers.engines.base import AbstractTraining, StateBytes
from workers.engines.loss import evaluation_loss, loss_of
from workers.engines.schedule import changes_rate, make_scheduler
from workers.engines.zero_states import zero_state_bytes
from workers.measure.stopwatch import AbstractStopwatch
from workers.models.built import BuiltModel
from workers.parallel.compiling import forget_compiled
from workers.parallel.zero import Engine, OptimizerMaker, make_engine
from workers.parallel.zero_world import ZeroWorld
from workers.process_groups import Mesh

_TAG = "checkpoint"  # DeepSpeed's name for a folder in the folder


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepSpeedTraining(AbstractTraining):
    """A whole model on each tensor group of ranks, its states split over data ranks by ZeRO."""

    engine: Engine
    world: ZeroWorld
    device: torch.device
    data: int  # data-parallel ranks, over which gradients are averaged
    counts: bool  # whether this rank's loss counts: of the ranks that split a block, one does

    @property
    def module(self) -> nn.Module:
        """The model inside the engine."""
        module: nn.Module = self.engine.module
        return module

    def step(
        self, batches: Sequence[MicroBatch], targets: int, watch: AbstractStopwatch
    ) -> torch.Tensor:
        parts = []
        for index, batch in enumerate(batches):
            with watch.during("data"):
                inputs = batch.on(self.device)
            # told each time, since a step may have fewer micro-batches than the plan (packing)
            self.engine.set_gradient_accumulation_boundary(index == len(batches) - 1)
            with watch.during("forward"):
                part = loss_of(self.engine(**inputs)) * (batch.targets / targets)
            with watch.during("backward"):
                # the ranks' gradients are averaged, the parts of the loss add up
                self.engine.backward(part * self.data, scale_wrt_gas=False)
            parts.append(part.detach())
        with watch.during("optimizer"):
            self.engine.step()
        return torch.stack(parts).sum() * self.counts

    def evaluate(self, batches: Sequence[MicroBatch], targets: int) -> torch.Tensor | None:
        self.engine.eval()
        loss = evaluation_loss(
            self.engine, ((batch.on(self.device), batch.targets / targets) for batch in batches)
        )
        self.engine.train()
        return None if loss is None else loss * self.counts

    def save(self, folder: Path) -> None:
        self.engine.save_checkpoint(str(folder), tag=_TAG, save_latest=False)

    def state_bytes(self) -> StateBytes:
        return zero_state_bytes(self.engine, self.device)

    def close(self) -> None:
        try:
            self.engine.destroy()
        finally:
            self.world.close()
            forget_compiled()


def start_deepspeed(
    model: BuiltModel,
    settings: DeepSpeedSettings,
    mesh: Mesh | None,
    device: torch.device,
    train: TrainSpec,
    optimizer_of: OptimizerMaker,
) -> DeepSpeedTraining:
    """A model in DeepSpeed's engine, over the ranks of the mesh."""
    with contextlib.ExitStack() as on_failure:
        world = ZeroWorld(mesh, device)
        on_failure.callback(world.close)
        scheduler_of = partial(make_scheduler, train=train) if changes_rate(train) else None
        engine = make_engine(model, settings, device, optimizer_of, scheduler_of)
        on_failure.pop_all()
    return DeepSpeedTraining(
        engine=engine,
        world=world,
        device=device,
        data=1 if mesh is None else mesh.size("replicate", "shard"),
        counts=mesh is None or mesh.place.tensor == 0,
    )
