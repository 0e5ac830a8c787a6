"""Passes of a module in training mode, from one state, with equal draws."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import numpy as np
import torch
from torch import nn

from search_spaces.errors import ModelError
from search_spaces.facts import LossForm
from workers.models.built import SampleNumbers
from workers.models.equal_draws import EqualDraws
from workers.models.user_code import user_code_errors
from workers.plain_torch.loss import loss_of

ROUNDING = 256 * torch.finfo(torch.float32).eps  # of sums in another order, relative
_WATCHED, _VALUES = 12, 2**16  # weights, and values of each, whose gradients are compared
_PLAIN = (bool, int, float, torch.Tensor)  # attributes that hold state

Inputs = Callable[[SampleNumbers], Mapping[str, Any]]


@final
class StepPasses:
    """Runs forward and backward passes, and notes what they show of weights and state."""

    def __init__(self, module: nn.Module, inputs: Inputs, until: float, *, gradients: bool) -> None:
        """Takes the state from which passes start.

        Args:
            module: A module whose weights keep their values; it is used up.
            inputs: Makes the module's arguments.
            until: Time of this thread's clock at which passes end [s].
            gradients: Return gradients too, not the loss alone.
        """
        self.gradients = gradients
        self.module, self.form, self.draws = module.train(), LossForm.NONE, False
        self._inputs, self._until = inputs, until
        self._used: list[frozenset[str]] = []
        trained = [one for one in module.parameters() if one.requires_grad and gradients]
        self._watched = trained[:: max(1, len(trained) // _WATCHED)] + trained[-1:]
        self._state = [(part, _attributes(part), _buffers(part)) for part in module.modules()]

    def run(
        self, numbers: SampleNumbers, *, salt: int = 0, restores: bool = True, equal: bool = True
    ) -> torch.Tensor:
        """Returns loss and gradients of a pass as one vector.

        Args:
            numbers: The samples.
            salt: Seed of the draws.
            restores: Start from the first state, not from that after the last pass.
            equal: Give all rows the same draws.

        Raises:
            ModelError: If the output has no loss, or one for each sample.
            UserCodeError: If the module fails.
            TooSlowError: If the time is over.
        """
        if restores:
            self._restore()
        self.module.zero_grad()
        inputs = self._inputs(numbers)
        random.seed(salt)
        np.random.seed(salt)
        torch.default_generator.manual_seed(salt)
        before = _generators()
        with EqualDraws(self._until, equal=equal) as mode, torch.enable_grad():
            with user_code_errors("forward"):
                output = self.module(**inputs)
            loss = self._loss(output)
            with user_code_errors("backward"):
                loss.backward()
        self.draws |= mode.draws > 0 or _generators() != before
        named = self.module.named_parameters()
        self._used.append(frozenset(name for name, one in named if one.grad is not None))
        return torch.cat([loss.detach().double().reshape(1), *map(_gradient, self._watched)])

    def _loss(self, output: Any) -> torch.Tensor:
        try:
            loss = loss_of(output)
        except TypeError as error:
            raise ModelError(str(error)) from None
        if not loss.requires_grad:
            raise ModelError("forward returned a loss without a gradient: no weight takes part")
        self.form = _form(output)
        return loss

    def _restore(self) -> None:
        for part, attributes, buffers in self._state:
            part.__dict__.update({name: _copied(value) for name, value in attributes.items()})
            part._buffers.update({name: value.clone() for name, value in buffers.items()})

    def changed_state(self) -> tuple[str, ...]:
        """Returns the buffers that differ from the first state."""
        prefixes = {part: f"{name}." if name else "" for name, part in self.module.named_modules()}
        return tuple(
            prefixes[part] + name
            for part, _, buffers in self._state
            for name, value in buffers.items()
            if not _is_same(part._buffers.get(name), value)
        )

    def unused(self) -> tuple[str, ...]:
        """Returns trained weights without gradient in all passes so far."""
        used = frozenset[str]().union(*self._used)
        return tuple(name for name in _trained(self.module) if name not in used)

    def varying(self) -> tuple[str, ...]:
        """Returns weights with a gradient in some passes only."""
        used, always = frozenset[str]().union(*self._used), frozenset.intersection(*self._used)
        return tuple(name for name in _trained(self.module) if name in used - always)


def distance(one: torch.Tensor, other: torch.Tensor, *among: torch.Tensor) -> float:
    """Returns the larger relative difference of loss and gradients; 1 if one is no number.

    Args:
        one: A vector of `StepPasses.run`.
        other: Another.
        among: Vectors whose sizes count too, as of parts that cancel each other.
    """
    shares = []
    for at in (slice(1), slice(1, None)):
        size = max([1e-12, *(float(vector[at].norm()) for vector in (*among, other))])
        shares.append(float((one - other)[at].norm()) / size)
    return min(max(shares), 1e3) if all(map(math.isfinite, shares)) else 1.0


def _form(output: Any) -> LossForm:
    if isinstance(output, torch.Tensor):
        return LossForm.TENSOR
    if getattr(output, "loss", None) is not None:
        return LossForm.ATTRIBUTE
    return LossForm.MAPPING if isinstance(output, Mapping) else LossForm.TUPLE


def _trained(module: nn.Module) -> Sequence[str]:
    return [name for name, weight in module.named_parameters() if weight.requires_grad]


def _gradient(weight: nn.Parameter) -> torch.Tensor:
    gradient = torch.zeros_like(weight) if weight.grad is None else weight.grad
    gradient = gradient.to_dense() if gradient.is_sparse else gradient
    gradient = torch.view_as_real(gradient) if gradient.is_complex() else gradient
    return gradient.detach().flatten()[:_VALUES].double()


def _attributes(part: nn.Module) -> dict[str, Any]:
    names = (name for name in part.__dict__ if not name.startswith("_") and name != "training")
    held = {name: part.__dict__[name] for name in names}
    return {name: _copied(value) for name, value in held.items() if isinstance(value, _PLAIN)}


def _buffers(part: nn.Module) -> dict[str, torch.Tensor]:
    return {name: one.clone() for name, one in part._buffers.items() if one is not None}


def _copied(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def _is_same(one: torch.Tensor | None, other: torch.Tensor) -> bool:
    return one is not None and one.shape == other.shape and torch.equal(one, other)


def _generators() -> tuple[object, ...]:
    _, keys, position, *_ = np.random.get_state(legacy=True)
    numpy = (np.asarray(keys).tobytes(), position)
    return (torch.get_rng_state().numpy().tobytes(), numpy, random.getstate())
