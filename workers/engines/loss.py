"""The loss in what a model returns."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping

import torch


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
