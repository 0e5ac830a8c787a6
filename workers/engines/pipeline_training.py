"""Engine `torch` with a pipeline: stages that hand micro-batches on, by torch's schedules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from search_spaces.errors import ModelError
from search_spaces.render import TorchSettings
from workers.data.collate import MicroBatch, to_common_shape
from workers.engines.base import AbstractTraining, StateBytes
from workers.engines.checkpoint import write_shard
from workers.engines.conveyor import Conveyor
from workers.engines.states import state_bytes
from workers.engines.tied import TiedWeights
from workers.engines.update import Update
from workers.measure.stopwatch import AbstractStopwatch
from workers.parallel.compiling import forget_compiled


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineTraining(AbstractTraining):
    """The stages of this rank, under DDP, FSDP2 or alone among the ranks of the same stages.

    Forward and backward passes alternate as the schedule wants it, and wait for other stages in
    between: they are counted together, as backward.
    """

    module: nn.Module  # all stages of this rank
    conveyor: Conveyor
    tied: TiedWeights | None
    update: Update
    settings: TorchSettings
    device: torch.device
    data: int  # data-parallel ranks, over which gradients are averaged
    counts: bool  # whether this rank's loss counts: of the ranks that split a block, one does
    writes: bool = True  # whether this rank has a part in checkpoints: of replicas, one does
    pads: bool  # whether batches are of Plimsoll's own data, which can be filled up

    def step(
        self, batches: Sequence[MicroBatch], targets: int, watch: AbstractStopwatch
    ) -> torch.Tensor:
        with watch.during("data"):
            alike = self._alike(batches)
            # the ranks' gradients are averaged, the parts of the loss add up
            weights = [batch.targets / targets * self.data for batch in alike]
        with watch.during("backward"):
            parts = self.conveyor.run(alike, weights, self.update)
            if self.tied is not None:
                self.tied.add_up()
        with watch.during("optimizer"):
            self.update.step()
        return self._added_up(parts) / self.data

    def evaluate(self, batches: Sequence[MicroBatch], targets: int) -> torch.Tensor:
        """The last stage must give a loss in evaluation mode too: torch's schedules want one."""
        self.module.eval()
        alike = self._alike(batches)
        weights = [batch.targets / targets for batch in alike]
        parts = self.conveyor.run(alike, weights, self.update, trains=False)
        self.module.train()
        return self._added_up(parts)

    def save(self, folder: Path) -> None:
        if self.writes:
            write_shard(self.module, self.update.optimizer, folder)

    def state_bytes(self) -> StateBytes:
        return state_bytes(self.module, self.update.optimizer, self.settings, self.device)

    def close(self) -> None:
        """Beyond tensors there is what was compiled, which guards hold on to."""
        if self.settings.compile:
            forget_compiled()

    def _alike(self, batches: Sequence[MicroBatch]) -> Sequence[MicroBatch]:
        return to_common_shape(batches) if self.pads else _of_one_shape(batches)

    def _added_up(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """This rank's part of the loss from those of its last stage; 0 if it has none."""
        if not parts:
            return torch.zeros((), device=self.device)
        return torch.stack(list(parts)).sum() * self.counts


def _of_one_shape(batches: Sequence[MicroBatch]) -> Sequence[MicroBatch]:
    shapes = [{name: tuple(value.shape) for name, value in b.inputs.items()} for b in batches]
    for shape in shapes:
        if shape != shapes[0]:
            raise ModelError(
                "a pipeline needs micro-batches of one shape, the batch maker made"
                f" {shapes[0]} and {shape}"
            )
    return batches
