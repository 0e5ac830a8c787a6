"""Engine `torch` without a pipeline: accumulation, gradient reduction, update."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

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
from workers.engines.optimizer_step import Update
from workers.engines.stopwatch import AbstractStopwatch
from workers.parallel.compile import reset_compiler


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

    def step(
        self, batches: Sequence[MicroBatch], targets: int, watch: AbstractStopwatch
    ) -> torch.Tensor:
        parts = []
        for index, batch in enumerate(batches):
            with watch.during("data"):
                inputs = batch.on(self.device)
            with self._gradient_sync(last=index == len(batches) - 1):
                with watch.during("forward"), autocast(self.settings, self.device):
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
            partial(autocast, self.settings, self.device),
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
        if self.settings.compile:
            reset_compiler()

    @contextlib.contextmanager
    def _gradient_sync(self, *, last: bool) -> Iterator[None]:
        """Reduces gradients in this pass or accumulates them for the last, by the settings."""
        sync = last or self.settings.sync_every_pass
        if isinstance(self.module, DistributedDataParallel) and not sync:
            with self.module.no_sync():
                yield
            return
        if isinstance(self.module, FSDPModule):
            self.module.set_requires_gradient_sync(sync)
            self.module.set_requires_all_reduce(last)  # over replicas, once a step
        yield


def autocast(
    settings: TorchSettings, device: torch.device
) -> contextlib.AbstractContextManager[object]:
    """Returns the autocast context; disabled under FSDP2, which sets the precision itself."""
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(settings.compute)
    enabled = dtype is not None and settings.wrapper != "fsdp2"
    return torch.autocast(device.type, dtype=dtype, enabled=enabled)
