"""Interface of all engines: optimizer steps, evaluation, checkpoints, bytes of model state."""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import nn

from workers.data.collate import MicroBatch
from workers.engines.stopwatch import Stopwatch
from workers.memory.meter import StateBytes
from workers.plain_torch.loss import loss_of


class AbstractTraining(ABC):
    """A model that is ready to train on this rank, together with the other ranks."""

    device: torch.device
    gradient_norms: list[float]  # of the first step that moves weights, unclipped; empty before

    @abstractmethod
    def step(self, batches: Sequence[MicroBatch], targets: float, watch: Stopwatch) -> torch.Tensor:
        """Trains on the micro-batches of this rank's data index and updates the weights.

        Each micro-batch's loss is weighted by its share of the step's targets. The gradient
        is therefore that of the mean over the global batch, however the batch is laid out.

        Args:
            batches: The micro-batches of the step; ranks with the same data index get the same.
            targets: Weight of the global batch, over all ranks: see `MicroBatch.targets`.
            watch: Records the current phase.

        Returns:
            This rank's part of the global batch's mean loss: a scalar on the device. The parts of
            all ranks add up to the loss. A rank that computes no loss, or repeats that of another
            rank, returns 0.
        """

    @abstractmethod
    def evaluate(self, batches: Sequence[MicroBatch], targets: float) -> torch.Tensor | None:
        """Runs forward passes in evaluation mode without gradients, then returns to training mode.

        Args:
            batches: The micro-batches of a step, as `step` takes them.
            targets: Weight of the global batch, over all ranks: see `MicroBatch.targets`.

        Returns:
            This rank's part of the mean loss, as from `step`; None if the model returns no loss
            in evaluation mode.
        """

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Writes this rank's part of a checkpoint: weights and optimizer states.

        All ranks call it together, each with its own empty folder. Only one of several replicas
        writes. Every tensor rank and stage writes the weights that it shares with others.

        Raises:
            OSError: If the folder cannot be written.
        """

    @abstractmethod
    def state_bytes(self) -> StateBytes:
        """Returns bytes of weights, gradients and optimizer states on this rank, after a step."""

    @abstractmethod
    def close(self) -> None:
        """Releases what the engine holds beyond its tensors; called once, also on failure."""


def evaluation_loss(
    module: nn.Module,
    batches: Sequence[MicroBatch],
    targets: float,
    device: torch.device,
    computing: Callable[[], contextlib.AbstractContextManager[object]] = contextlib.nullcontext,
) -> torch.Tensor | None:
    """Evaluates a whole model, each pass in a context of `computing`: see `evaluate` above."""
    parts = []
    module.eval()
    with torch.no_grad():
        for batch in batches:
            with computing():
                output = module(**batch.on(device))
            try:
                parts.append(loss_of(output) * (batch.targets / targets))
            except TypeError:
                break
    module.train()
    return torch.stack(parts).sum() if len(parts) == len(batches) else None
