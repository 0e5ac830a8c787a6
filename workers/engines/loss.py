"""The loss in what a model returns."""

from __future__ import annotations

import torch


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
