"""Random draws that are the same for a sample, whatever the samples beside it."""

from __future__ import annotations

import time
from typing import Any, final

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from search_spaces.errors import UserError


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

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if time.thread_time() > self._until:
            raise TooSlowError
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
