"""Checkpoints, bytes of state and release of engine `torch`, with a pipeline or without."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import nn

from search_spaces.settings.render import TorchSettings
from workers.engines.base import AbstractTraining
from workers.engines.checkpoint import write_shard
from workers.memory.meter import StateBytes
from workers.plain_torch.blocks import reset_compiler
from workers.plain_torch.slices import local_tensor
from workers.plain_torch.update import GradientNorm, Update, trained_weights


@dataclass(frozen=True, slots=True, kw_only=True)
class AbstractTorchTraining(AbstractTraining):
    """A model in the hands of torch alone; subclasses run its steps."""

    module: nn.Module  # with a pipeline: all stages of this rank
    update: Update
    norm: GradientNorm
    settings: TorchSettings
    device: torch.device
    data: int  # data-parallel ranks, over which gradients are averaged
    counts: bool  # this rank's loss counts: true for one of the ranks that split a block
    writes: bool = True  # this rank writes checkpoints: true for one of the replicas
    gradient_norms: list[float] = field(default_factory=list)

    def apply_update(self) -> None:
        """Updates the weights by complete gradients, and notes the norm of the first ones."""
        if not self.gradient_norms:
            scaler = self.update.scaler
            norm = self.norm.of(trained_weights(self.update.optimizer)).item()
            # a step whose gradient overflows fp16 is skipped, which is usual at first
            if scaler is None or math.isfinite(norm):
                self.gradient_norms.append(norm if scaler is None else norm / scaler.get_scale())
        self.update.step()

    def save(self, folder: Path) -> None:
        if self.writes:
            write_shard(self.module, self.update.optimizer, folder)

    def state_bytes(self) -> StateBytes:
        """Returns bytes after a step; state offloaded to another device does not count.

        Gradients take as many bytes as the trained weights; twice that with DDP, unless they are
        views of its buckets.
        """
        ddp, states = self.settings.ddp, self.update.optimizer.state.values()
        has_own_buckets = ddp is not None and not ddp.gradient_as_bucket_view
        trained = [weight for weight in self.module.parameters() if weight.requires_grad]
        values = [value for state in states for value in state.values()]
        return StateBytes(
            weights=_bytes(self.module.parameters(), self.device),
            gradients=_bytes(trained, self.device) * (2 if has_own_buckets else 1),
            optimizer_states=_bytes(
                (value for value in values if isinstance(value, torch.Tensor)), self.device
            ),
        )

    def close(self) -> None:
        """Drops compiled code, whose guards hold tensors."""
        if self.settings.blocks.compile or self.settings.states == "bf16_stochastic":
            reset_compiler()


def _bytes(tensors: Iterable[torch.Tensor], device: torch.device) -> int:
    local = map(local_tensor, tensors)
    return sum(tensor.nbytes for tensor in local if tensor.device.type == device.type)
