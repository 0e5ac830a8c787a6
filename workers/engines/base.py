"""What every engine offers: an optimizer step, and how much memory its states take."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from workers.data.collate import MicroBatch
from workers.measure.stopwatch import AbstractStopwatch


@dataclass(frozen=True, slots=True, kw_only=True)
class StateBytes:
    """Bytes of model state that this rank's device holds."""

    weights: int
    gradients: int
    optimizer_states: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.weights + self.gradients + self.optimizer_states


class AbstractTraining(ABC):
    """A model that is ready to train on this rank, together with the other ranks."""

    device: torch.device

    @abstractmethod
    def step(
        self, batches: Sequence[MicroBatch], targets: int, watch: AbstractStopwatch
    ) -> torch.Tensor:
        """Trains on the micro-batches of this rank's data number and updates the weights.

        Each micro-batch's mean loss is weighted by its share of the step's targets, so that the
        gradient is that of the mean over the whole global batch, however it is laid out.

        Args:
            batches: The micro-batches of the step; ranks of one data number get the same.
            targets: Labels of the whole global batch, over all ranks.
            watch: Told which phase is under way.

        Returns:
            This rank's part of the global batch's mean loss: a scalar on the device. The parts of
            all ranks add up to the loss; a rank that computes none, or that another one repeats,
            gives 0.
        """

    @abstractmethod
    def evaluate(self, batches: Sequence[MicroBatch], targets: int) -> torch.Tensor | None:
        """Forward passes alone, in evaluation mode and without gradients; then trains on.

        Args:
            batches: The micro-batches of a step, as `step` takes them.
            targets: Labels of the whole global batch, over all ranks.

        Returns:
            This rank's part of the mean loss, as `step` gives it; None where the model gives no
            loss in evaluation mode.
        """

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Writes this rank's part of a checkpoint: weights and optimizer states.

        Of ranks that hold the same one writes; what tensor ranks or stages share is of each.

        All ranks call it together, each with an empty folder of its own.

        Raises:
            OSError: If the folder cannot be written.
        """

    @abstractmethod
    def state_bytes(self) -> StateBytes:
        """What weights, gradients and optimizer states take on this rank, after a step."""

    @abstractmethod
    def close(self) -> None:
        """Gives back what the engine holds beyond its own tensors; called once, also on failure."""


def loss_of(output: object) -> torch.Tensor:
    """The scalar loss in what a module returned.

    Raises:
        TypeError: If there is none; says what was returned instead.
    """
    loss = loss_in(output)
    if loss is None:
        raise TypeError(
            f"the model's forward returned {type(output).__name__} without a scalar loss;"
            " it must return a loss tensor or something with .loss"
        )
    return loss


def loss_in(output: object) -> torch.Tensor | None:
    """The scalar loss in what a module returned, None if there is none."""
    loss = output if isinstance(output, torch.Tensor) else getattr(output, "loss", None)
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        return None
    return loss.float().reshape(())


def evaluation_loss(
    module: Callable[..., object],
    inputs: Iterable[tuple[Mapping[str, torch.Tensor], float]],
    computing: Callable[[], contextlib.AbstractContextManager[object]] = contextlib.nullcontext,
) -> torch.Tensor | None:
    """Forward passes without gradients: the weighted sum of their losses.

    Args:
        module: In evaluation mode.
        inputs: Of each pass the keyword arguments, and the weight of its loss.
        computing: The context of each pass.

    Returns:
        None where a pass gives no loss, which a model may do in evaluation mode.
    """
    parts = []
    with torch.no_grad():
        for given, weight in inputs:
            with computing():
                loss = loss_in(module(**given))
            parts.append(None if loss is None else loss * weight)
    found = [part for part in parts if part is not None]
    return torch.stack(found).sum() if len(found) == len(parts) else None
