"""The end of an optimizer step: gradients in, new weights out."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """What happens to gradients once they are all there."""

    optimizer: torch.optim.Optimizer

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """The loss as backward takes it."""
        return loss

    def step(self) -> None:
        """Updates the weights and forgets the gradients."""
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
