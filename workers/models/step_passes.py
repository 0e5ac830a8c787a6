"""Passes of a module in training mode, from one state, with equal draws."""

import math
import random
import time
from collections.abc import Callable, Mapping
from typing import Any, final

import numpy as np
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from search_spaces.errors import ModelError, UserError
from search_spaces.facts import LossForm
from workers.data.user_batches import SampleNumbers
from workers.models.user_code import user_code_errors
from workers.plain_torch.loss import loss_of

ROUNDING = 256 * torch.finfo(torch.float32).eps  # of sums in another order, relative
_WATCHED, _VALUES = 12, 2**16  # weights, and values of each, whose gradients are compared
_PLAIN = (bool, int, float, torch.Tensor)  # attributes that hold state

Inputs = Callable[[SampleNumbers], Mapping[str, Any]]


class TooSlowError(UserError):
    """Passes take longer than a probe may."""


@final
class EqualDraws(TorchDispatchMode):
    """Gives each row of a tensor the same draws, whatever the number of rows or their padding.

    A draw is a hash of its place in the row, of the order of draws and of torch's seed. Dropout and
    noise then cancel between a batch and its parts. Draws of NumPy and Python stay as they are.
    """

    def __init__(self, until: float, *, equal: bool = True) -> None:
        """Makes the mode.

        Args:
            until: Time of this thread's clock at which operators raise `TooSlowError` [s].
            equal: Replace draws; otherwise the mode only watches the time.
        """
        super().__init__()  # type: ignore[no-untyped-call]
        self._until, self._equal, self.draws = until, equal, 0
        self.differentiates = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if time.thread_time() > self._until:
            raise TooSlowError
        self.differentiates |= torch._C._current_graph_task_id() >= 0
        if not self._equal:
            return func(*args, **(kwargs or {}))
        given = {one.name: value for one, value in zip(func._schema.arguments, args, strict=False)}
        given |= kwargs or {}
        name = func._schema.name.removeprefix("aten::")
        if name == "native_dropout" and given.get("train") and given["p"] > 0:
            mask = self._uniform(given["input"]) >= given["p"]
            return given["input"] * mask / (1 - given["p"]), mask
        out = func(*args, **(kwargs or {}))
        kind = name.removesuffix("_").removesuffix("_like").replace("randn", "normal")
        if kind not in ("rand", "uniform", "exponential", "normal", "bernoulli", "randint"):
            return out
        if name == "bernoulli_":
            given.setdefault("p", 0.5)
        return out.copy_(_draw(kind, given, self._uniform(out)))

    def _uniform(self, like: torch.Tensor) -> torch.Tensor:
        """Returns numbers between 0 and 1 in a tensor's shape, alike in all rows."""
        self.draws += 1
        start = 0.618 * self.draws + 59.9 * (torch.initial_seed() % 2**20)
        place = torch.tensor(start, dtype=torch.float64, device=like.device)
        for dim, size in list(enumerate(like.shape))[1:]:
            steps = torch.arange(size, dtype=torch.float64, device=like.device)
            shape = (-1, *[1] * (like.dim() - 1 - dim))
            place = place + (steps * (1.324 + 0.731 * dim)).view(shape)
        hashed = torch.sin(place * 12.9898) * 43758.5453 % 1.0
        return hashed.clamp(1e-6, 1 - 1e-6).expand(like.shape)


def _draw(kind: str, given: dict[str, Any], uniform: torch.Tensor) -> Any:
    low = given.get("from", given.get("low", 0))
    match kind:
        case "uniform":
            return low + (given.get("to", 1.0) - low) * uniform
        case "exponential":
            return -uniform.log() / given.get("lambd", 1.0)
        case "normal":
            standard = torch.erfinv(2 * uniform - 1) * 2**0.5
            return standard * given.get("std", 1) + given.get("mean", 0)
        case "bernoulli":
            return (uniform < given.get("p", given["self"])).to(uniform.dtype)
        case "randint":
            return (low + uniform * (given["high"] - low)).floor()
    return uniform


@final
class StepPasses:
    """Runs forward and backward passes of a module that is used up, and notes what they show.

    They start from its first state, end at time `until` of this thread's clock, and return
    gradients only if asked.
    """

    def __init__(self, module: nn.Module, inputs: Inputs, until: float, *, gradients: bool) -> None:
        self.gradients = gradients
        self.module, self.form, self.draws = module.train(), LossForm.NONE, False
        self.differentiates = False
        self._inputs, self._until = inputs, until
        self._used: list[frozenset[str]] = []
        trained = [one for one in module.parameters() if one.requires_grad and gradients]
        self._watched = trained[:: max(1, len(trained) // _WATCHED)] + trained[-1:]
        self._weights = {one: one._version for one in module.parameters()}
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
        for part, attributes, buffers in self._state if restores else ():
            part.__dict__.update(_copied(attributes))
            part._buffers.update(_copied(buffers))
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
            self.differentiates |= mode.differentiates
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
        self.form = LossForm.MAPPING if isinstance(output, Mapping) else LossForm.TUPLE
        if isinstance(output, torch.Tensor):
            self.form = LossForm.TENSOR
        elif getattr(output, "loss", None) is not None:
            self.form = LossForm.ATTRIBUTE
        return loss

    def changed_buffers(self) -> tuple[str, ...]:
        """Returns the buffers that differ from the first state."""
        first = {part: buffers for part, _, buffers in self._state}
        return tuple(
            f"{path}.{name}".removeprefix(".")
            for path, part in self.module.named_modules()
            for name, before in first[part].items()
            if (now := part._buffers.get(name)) is None or not torch.equal(now, before)
        )

    def changed_weights(self) -> tuple[str, ...]:
        """Returns the weights that passes wrote to, as a moving average of others does."""
        named = self.module.named_parameters()
        return tuple(name for name, one in named if one._version != self._weights[one])

    def use(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Returns the trained weights without gradient in all passes so far, and in some."""
        trained = [name for name, one in self.module.named_parameters() if one.requires_grad]
        used, always = frozenset[str]().union(*self._used), frozenset.intersection(*self._used)
        unused = tuple(name for name in trained if name not in used)
        return unused, tuple(name for name in trained if name in used - always)


def distance(one: torch.Tensor, other: torch.Tensor, *among: torch.Tensor) -> float:
    """Returns the larger relative difference of loss and gradients; 1 if one is no number.

    The sizes of vectors `among` count too, as of parts that cancel each other.
    """
    shares = []
    for at in (slice(1), slice(1, None)):
        size = max([1e-12, *(float(vector[at].norm()) for vector in (*among, other))])
        shares.append(float((one - other)[at].norm()) / size)
    return min(max(shares), 1e3) if all(map(math.isfinite, shares)) else 1.0


def _gradient(weight: nn.Parameter) -> torch.Tensor:
    gradient = torch.zeros_like(weight) if weight.grad is None else weight.grad
    gradient = gradient.to_dense() if gradient.is_sparse else gradient
    gradient = torch.view_as_real(gradient) if gradient.is_complex() else gradient
    return gradient.detach().flatten()[:_VALUES].double()


def _attributes(part: nn.Module) -> dict[str, Any]:
    names = (name for name in part.__dict__ if not name.startswith("_") and name != "training")
    held = {name: part.__dict__[name] for name in names}
    return _copied({name: value for name, value in held.items() if isinstance(value, _PLAIN)})


def _buffers(part: nn.Module) -> dict[str, Any]:
    return _copied({name: one for name, one in part._buffers.items() if one is not None})


def _copied(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: value.detach().clone() if isinstance(value, torch.Tensor) else value
        for name, value in values.items()
    }


def _generators() -> tuple[object, ...]:
    _, keys, position, *_ = np.random.get_state(legacy=True)
    numpy = (np.asarray(keys).tobytes(), position)
    return (torch.get_rng_state().numpy().tobytes(), numpy, random.getstate())
