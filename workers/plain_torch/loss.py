"""The loss in what a model's forward returned, and batches on a device."""

from collections.abc import Mapping
from typing import Any

import torch


def loss_of(output: Any) -> torch.Tensor:
    """Returns the loss of a forward pass, a scalar in fp32.

    It is the output itself, its attribute `loss`, its key "loss", or of a tuple the first element,
    or else the only scalar that has a gradient, as in (logits, loss).

    Raises:
        TypeError: If there is none, or one for each sample; the sentence says what to return.
    """
    loss = output if isinstance(output, torch.Tensor) else getattr(output, "loss", None)
    if loss is None and isinstance(output, Mapping):
        loss = output.get("loss")
    if loss is None and isinstance(output, tuple | list):
        loss = _scalar_among(output)
    if not isinstance(loss, torch.Tensor):
        raise TypeError(_without_loss(output))
    if loss.numel() != 1:
        shape = tuple(loss.shape)
        if len(shape) == 1:
            raise TypeError(
                f"forward returned one loss per sample, shape {shape}: return loss.mean()"
            )
        raise TypeError(f"forward returned a tensor of shape {shape}: return a scalar loss")
    return loss.float().reshape(())


def _scalar_among(output: tuple[Any, ...] | list[Any]) -> torch.Tensor | None:
    tensors = [one for one in output if isinstance(one, torch.Tensor) and one.is_floating_point()]
    trained = [one for one in tensors if one.requires_grad] or tensors
    # logits of one sample may have one element too
    scalars = [one for one in trained if one.dim() == 0] or [
        one for one in trained if one.numel() == 1
    ]
    is_clear = len(scalars) == 1 or (len(scalars) > 1 and scalars[0] is output[0])
    return scalars[0] if is_clear else None


def _without_loss(output: Any) -> str:
    kind = type(output).__name__
    if isinstance(output, Mapping):
        scalars = [
            str(key)
            for key, value in output.items()
            if isinstance(value, torch.Tensor) and value.numel() == 1 and value.requires_grad
        ]
        names = ", ".join(scalars or map(str, output)) or "nothing"
        losses = {0: "the loss", 1: "it"}.get(len(scalars), "their sum")
        return f"forward returned {kind}, which has {names}: return {losses} as loss"
    if isinstance(output, tuple | list):
        parts = (str(list(getattr(one, "shape", [type(one).__name__]))) for one in output)
        kind = f"{kind} of {', '.join(parts)}, without one scalar loss"
        return f"forward returned {kind}: return the loss as its first element"
    return f"forward returned {kind} without a loss: return a loss tensor or an object with .loss"


def on_device(value: Any, device: torch.device) -> Any:
    """Returns an input of a model with its tensors on a device; what is no tensor stays."""
    if isinstance(value, torch.Tensor):
        return value.to(device, non_blocking=True)
    if isinstance(value, Mapping):
        return {key: on_device(one, device) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return type(value)([on_device(one, device) for one in value])
    return value
