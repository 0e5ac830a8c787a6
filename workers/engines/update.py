"""The end of an optimizer step: gradients in, new weights out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.optim.lr_scheduler import LRScheduler

from search_spaces.plan import Precision
from search_spaces.spec.train_section import TrainSpec
from workers.engines.gradients import Clipping, local_weight, trained_weights
from workers.engines.schedule import changes_rate, make_scheduler
from workers.process_groups import Mesh


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """What happens to gradients once they are all there: unscaled, clipped, applied.

    A step in which a gradient overflowed fp16, on whichever rank, is skipped on all: neither
    weights nor learning rate move, and the scale of the loss is halved.
    """

    optimizer: torch.optim.Optimizer
    schedule: LRScheduler | None = None
    clipping: Clipping | None = None
    scaler: GradScaler | None = None

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """The loss as backward takes it."""
        return loss if self.scaler is None else self.scaler.scale(loss)

    def step(self) -> None:
        """Updates the weights and forgets the gradients; all ranks call it together."""
        weights = trained_weights(self.optimizer)
        if self.scaler is None:
            self._apply(weights)
        else:
            guarded = _Guarded(
                param_groups=[{"params": [local_weight(weight) for weight in weights]}],
                step=lambda: self._apply(weights),
            )
            self.scaler.step(guarded)  # type: ignore[arg-type]  # as much as it needs of one
            self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)

    def _apply(self, weights: Iterable[torch.Tensor]) -> None:
        if self.clipping is not None:
            self.clipping.apply(weights)
        self.optimizer.step()
        if self.schedule is not None:
            self.schedule.step()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Guarded:
    """The optimizer as the scaler sees it: gradients of local weights, and a step to skip.

    The scaler's kernels take no mix of shards of several meshes, and fused optimizers would
    look at the gradients once more.
    """

    param_groups: list[dict[str, Any]]
    step: Callable[[], None]


def make_update(
    optimizer: torch.optim.Optimizer,
    train: TrainSpec,
    compute: Precision,
    mesh: Mesh | None,
    device: torch.device,
    *,
    counted_elsewhere: tuple[nn.Parameter, ...] = (),
) -> Update:
    """The update that the spec asks for.

    Args:
        optimizer: Of this rank's weights.
        train: Says how to clip, and the learning rate of each step.
        compute: fp16 needs its loss scaled.
        mesh: The ranks that train together, None for one alone.
        device: Where they talk.
        counted_elsewhere: Weights of this rank that another stage has too (tied weights), and
            counts in the norm of the gradient. Both stages must hold the gradient's sum.
    """
    clipping = None
    if train.grad_clip is not None:
        clipping = Clipping(
            max_norm=train.grad_clip, mesh=mesh, device=device, counted_elsewhere=counted_elsewhere
        )
    return Update(
        optimizer=optimizer,
        schedule=make_scheduler(optimizer, train) if changes_rate(train) else None,
        clipping=clipping,
        scaler=_make_scaler(mesh, device) if compute == "fp16" else None,
    )


def _make_scaler(mesh: Mesh | None, device: torch.device) -> GradScaler:
    scaler = (
        GradScaler(device.type)
        if mesh is None
        else ShardedGradScaler(device.type, process_group=mesh.group)
    )
    # its tensors come with the first loss, and the first stages of a pipeline never see one
    scaler.scale(torch.zeros((), device=device))
    return scaler
