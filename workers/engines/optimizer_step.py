"""Optimizer and update of engine `torch`, over the ranks of a mesh."""

from dataclasses import asdict

import torch
from torch import nn

from search_spaces.plan import Precision
from search_spaces.settings.optimizer import Kind, render_schedule
from search_spaces.specification.sections import TrainSpec
from workers.models.optimizer import optimizer_of
from workers.plain_torch.update import Clipping, GradientNorm, Update, make_scaler, make_scheduler
from workers.process_groups import Mesh


def make_update(
    module: nn.Module, kind: Kind, train: TrainSpec, compute: Precision, norm: GradientNorm
) -> Update:
    """Makes the optimizer and its update with the specification's clipping and schedule.

    The step on the longest samples, which comes before the measured steps, counts as a step of the
    schedule.

    Args:
        module: What this rank trains.
        kind: The optimizer.
        train: Rates, decay, clipping and learning-rate schedule.
        compute: Precision; fp16 adds loss scaling.
        norm: The norm of the gradient over the ranks that train together.
    """
    optimizer = optimizer_of(kind, train, module)
    schedule = render_schedule(train)
    clip = train.grad_clip
    return Update(
        optimizer=optimizer,
        schedule=None if schedule is None else make_scheduler(optimizer, **asdict(schedule)),
        clipping=None if clip is None else Clipping(max_norm=clip, norm=norm),
        scaler=make_scaler(norm.group, norm.device) if compute == "fp16" else None,
    )


def make_norm(
    mesh: Mesh | None, device: torch.device, counted_elsewhere: tuple[nn.Parameter, ...] = ()
) -> GradientNorm:
    """Makes the norm of the gradient over the ranks of a mesh, None for a single rank.

    `counted_elsewhere` are tied weights of this rank that another stage counts. Both stages must
    hold the sum of the gradients.
    """
    return GradientNorm(
        group=None if mesh is None else mesh.group,
        holders=1 if mesh is None else mesh.size("replicate", "shard", "tensor"),
        device=device,
        counted_elsewhere=counted_elsewhere,
    )
