"""From a request to a model that is ready to train."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from search_spaces.render import TorchSettings, render_torch
from search_spaces.request import TrialRequest
from workers.models.built import BuiltModel
from workers.parallel.apply import parallelize
from workers.step import Training


@dataclass(frozen=True, slots=True, kw_only=True)
class StateBytes:
    """Bytes of model state that this rank holds."""

    weights: int
    gradients: int
    optimizer_states: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.weights + self.gradients + self.optimizer_states


def build_training(
    request: TrialRequest,
    model: BuiltModel,
    group: dist.ProcessGroup | None,
    device: torch.device,
) -> Training:
    """Applies the plan to the model and makes its optimizer."""
    settings = render_torch(request.plan, len(model.blocks))
    module = parallelize(model, settings, group, device)
    module.train()
    train = request.spec.train
    optimizer = torch.optim.AdamW(
        [weight for weight in module.parameters() if weight.requires_grad],
        lr=train.learning_rate,
        weight_decay=train.weight_decay,
        fused=True,
    )
    return Training(
        module=module,
        optimizer=optimizer,
        settings=settings,
        device=device,
        data=request.plan.data,
    )


def state_bytes(training: Training) -> StateBytes:
    """What weights, gradients and optimizer states take on this rank, after a step.

    DDP keeps gradients twice: in the weights' `.grad` and in the buckets that it reduces.
    """
    weights = list(training.module.parameters())
    trainable = sum(_local_bytes(weight) for weight in weights if weight.requires_grad)
    states = training.optimizer.state.values()
    return StateBytes(
        weights=sum(map(_local_bytes, weights)),
        gradients=trainable * _gradient_copies(training.settings),
        optimizer_states=sum(
            _local_bytes(value)
            for state in states
            for value in state.values()
            if isinstance(value, torch.Tensor)
        ),
    )


def _gradient_copies(settings: TorchSettings) -> int:
    return 2 if settings.wrapper == "ddp" else 1


def _local_bytes(tensor: torch.Tensor) -> int:
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return local.numel() * local.element_size()
