"""Engine `torch` without a pipeline: accumulation, gradient reduction, update."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import nn

from search_spaces.settings.render import TorchSettings
from workers.data.collate import MicroBatch
from workers.engines.base import (
    AbstractTraining,
    StateBytes,
    evaluation_loss,
    require_loss,
    state_bytes,
)
from workers.engines.checkpoint import write_shard
from workers.engines.stopwatch import Stopwatch
from workers.plain_torch.blocks import reset_compiler
from workers.plain_torch.data_parallel import autocast, gradient_sync
from workers.plain_torch.update import Update


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchTraining(AbstractTraining):
    """A whole model on each tensor group of ranks, under DDP, FSDP2 or no wrapper."""

    module: nn.Module
    update: Update
    settings: TorchSettings
    device: torch.device
    data: int  # data-parallel ranks, over which gradients are averaged
    counts: bool  # this rank's loss counts: true for one of the ranks that split a block
    writes: bool = True  # this rank writes checkpoints: true for one of the replicas

    def step(self, batches: Sequence[MicroBatch], targets: int, watch: Stopwatch) -> torch.Tensor:
        parts = []
        for index, batch in enumerate(batches):
            with watch.during("data"):
                inputs = batch.on(self.device)
            with gradient_sync(self.module, last=index == len(batches) - 1):
                with watch.during("forward"), autocast(self.settings.autocast, self.device):
                    part = require_loss(self.module(**inputs)) * (batch.targets / targets)
                with watch.during("backward"):
                    # times `data`: gradients are averaged over ranks, while loss parts add up
                    self.update.scale(part * self.data).backward()
            parts.append(part.detach())
        with watch.during("optimizer"):
            self.update.step()
        return torch.stack(parts).sum() * self.counts

    def evaluate(self, batches: Sequence[MicroBatch], targets: int) -> torch.Tensor | None:
        self.module.eval()
        loss = evaluation_loss(
            self.module,
            ((batch.on(self.device), batch.targets / targets) for batch in batches),
            partial(autocast, self.settings.autocast, self.device),
        )
        self.module.train()
        return None if loss is None else loss * self.counts

    def save(self, folder: Path) -> None:
        if self.writes:
            write_shard(self.module, self.update.optimizer, folder)

    def state_bytes(self) -> StateBytes:
        return state_bytes(self.module, self.update.optimizer, self.settings, self.device)

    def close(self) -> None:
        """Drops compiled code, whose guards hold tensors."""
        if self.settings.blocks.compile:
            reset_compiler()
