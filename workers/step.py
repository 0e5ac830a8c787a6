"""One optimizer step, as training runs it: accumulation, gradient averaging, update."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from search_spaces.render import TorchSettings
from workers.data.batch import MicroBatch
from workers.measure.stopwatch import AbstractStopwatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """A model that is ready to train, and how."""

    module: nn.Module
    optimizer: torch.optim.Optimizer
    settings: TorchSettings
    device: torch.device
    data: int  # data-parallel ranks, over which gradients are averaged


def optimizer_step(
    training: Training, batches: Sequence[MicroBatch], targets: int, watch: AbstractStopwatch
) -> torch.Tensor:
    """Trains on the micro-batches of this rank and updates the weights.

    Each micro-batch's mean loss is weighted by its share of the step's targets, so that the
    gradient is that of the mean over the whole global batch, however it is laid out.

    Args:
        training: The model and its optimizer.
        batches: This rank's micro-batches of the step.
        targets: Labels of the whole global batch, over all ranks.
        watch: Told which phase is under way.

    Returns:
        This rank's part of the global batch's mean loss: a scalar on the device. The parts of
        all ranks add up to the loss.
    """
    parts = []
    for index, batch in enumerate(batches):
        with watch.during("data"):
            inputs = {
                name: tensor.to(training.device, non_blocking=True)
                for name, tensor in batch.inputs.items()
            }
        with _gradient_sync(training, last=index == len(batches) - 1):
            with watch.during("forward"), _precision(training):
                part = loss_of(training.module(**inputs)) * (batch.targets / targets)
            with watch.during("backward"):
                # the ranks' gradients are averaged, the parts of the loss add up
                (part * training.data).backward()
        parts.append(part.detach())
    with watch.during("optimizer"):
        training.optimizer.step()
        training.optimizer.zero_grad(set_to_none=True)
    return torch.stack(parts).sum()


def loss_of(output: object) -> torch.Tensor:
    """The scalar loss in what a module returned.

    Raises:
        TypeError: If there is none; says what was returned instead.
    """
    loss = output if isinstance(output, torch.Tensor) else getattr(output, "loss", None)
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        raise TypeError(
            f"the model's forward returned {type(output).__name__} without a scalar loss;"
            " it must return a loss tensor or something with .loss"
        )
    return loss.float().reshape(())


def _precision(training: Training) -> contextlib.AbstractContextManager[object]:
    """Autocast where the sharding does not set the precision itself."""
    cast = training.settings.compute == "bf16" and training.settings.wrapper != "fsdp2"
    return torch.autocast(training.device.type, dtype=torch.bfloat16, enabled=cast)


@contextlib.contextmanager
def _gradient_sync(training: Training, last: bool) -> Iterator[None]:
    """Reduces gradients in this pass if the settings want it, else keeps them for the last."""
    module = training.module
    sync = last or training.settings.sync_every_pass
    if isinstance(module, DistributedDataParallel) and not sync:
        with module.no_sync():
            yield
        return
    if isinstance(module, FSDPModule):
        module.set_requires_gradient_sync(sync)
    yield
