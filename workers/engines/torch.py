"""Engine `torch` without a pipeline: accumulation, gradient reduction, update."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch

from workers.data.collate import MicroBatch
from workers.engines.base import evaluation_loss
from workers.engines.stopwatch import Stopwatch
from workers.engines.torch_base import AbstractTorchTraining
from workers.plain_torch.data_parallel import autocast, gradient_sync
from workers.plain_torch.loss import loss_of


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchTraining(AbstractTorchTraining):
    """A whole model on each tensor group of ranks, under DDP, FSDP2 or no wrapper."""

    def step(self, batches: Sequence[MicroBatch], targets: float, watch: Stopwatch) -> torch.Tensor:
        parts = []
        for index, batch in enumerate(batches):
            with watch.during("data"):
                inputs = batch.on(self.device)
            last, keep = index == len(batches) - 1, self.settings.gathered_between_passes
            with gradient_sync(self.module, last=last, keep_gathered=keep):
                with watch.during("forward"), autocast(self.settings.autocast, self.device):
                    part = loss_of(self.module(**inputs)) * (batch.targets / targets)
                with watch.during("backward"):
                    # times `data`: gradients are averaged over ranks, while loss parts add up
                    self.update.scale(part * self.data).backward()
            parts.append(part.detach())
        with watch.during("optimizer"):
            self.apply_update()
        return torch.stack(parts).sum() * self.counts

    def evaluate(self, batches: Sequence[MicroBatch], targets: float) -> torch.Tensor | None:
        computing = partial(autocast, self.settings.autocast, self.device)
        loss = evaluation_loss(self.module, batches, targets, self.device, computing)
        return None if loss is None else loss * self.counts
