"""Modules that stand where a stage has none of its own: cheap, and without parameters.

A stage runs the model's own forward. What lies in other stages is replaced: embeddings give
zeros, blocks hand on what they are given, the block before the first own one gives what was
received, and the one behind the last own one takes what is sent on and ends the pass.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockForm:
    """Where a block takes hidden states, and how it gives them back.

    `place` is a position or a keyword; `empty` is how many empty members follow the hidden states
    in the tuple that a block returns, None if it returns them bare.
    """

    place: int | str
    empty: int | None

    def taken(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The hidden states among a block's arguments, None if they are not there."""
        if isinstance(self.place, str):
            return kwargs.get(self.place)
        return args[self.place] if self.place < len(args) else None

    def given(self, hidden: torch.Tensor) -> Any:
        """Hidden states as a block gives them back."""
        return hidden if self.empty is None else (hidden, *[None] * self.empty)


class LeftEarlyError(Exception):
    """Ends a forward pass behind the last block of a stage; `leaving_early` catches it."""


class Passage:
    """Hidden states of the pass under way: those that came into a stage, those that leave it."""

    def __init__(self) -> None:
        self._received: torch.Tensor | None = None
        self._left: torch.Tensor | None = None

    def enter(self, hidden: torch.Tensor | None) -> None:
        """Keeps what was received for the pass that begins; None in the first stage."""
        self._received, self._left = hidden, None

    def received(self) -> torch.Tensor:
        """What was received."""
        assert self._received is not None
        return self._received

    def leave(self, hidden: torch.Tensor) -> torch.Tensor:
        """Keeps what is to be sent on.

        Raises:
            LeftEarlyError: Always: what comes behind is of other stages.
        """
        self._left = hidden
        raise LeftEarlyError

    def collect(self) -> torch.Tensor:
        """What is to be sent on; the passage is empty afterwards."""
        left, self._left, self._received = self._left, None, None
        assert left is not None
        return left


class Passing(nn.Module):
    """Stands for a block of another stage; by itself it hands hidden states on."""

    def __init__(
        self,
        block: nn.Module,
        form: BlockForm,
        act: Callable[[torch.Tensor], torch.Tensor] | None = None,
    ) -> None:
        super().__init__()
        self._form, self._act = form, act
        for name, value in vars(block).items():  # what a model's loop reads, as attention_type
            if not name.startswith("_") and not isinstance(value, nn.Module | torch.Tensor):
                setattr(self, name, value)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        hidden = self._form.taken(args, kwargs)
        return self._form.given(hidden if self._act is None else self._act(hidden))


class Zeros(nn.Module):
    """Stands for embeddings: zeros in the shape of hidden states, without memory for them."""

    def __init__(self, passage: Passage) -> None:
        super().__init__()
        self._passage = passage

    def forward(self, *_: Any, **__: Any) -> torch.Tensor:
        hidden = self._passage.received()
        return hidden.new_zeros(()).expand(hidden.shape)


def leaving_early(module: nn.Module, passage: Passage) -> None:
    """Lets `module` return what leaves the stage instead of its output; in place.

    Its own forward is replaced and not wrapped by another module, so that its parameters keep
    their names, and what shards the module sees the tensor that backward starts from.
    """
    whole = module.forward

    def forward(*args: Any, **kwargs: Any) -> torch.Tensor:
        try:
            whole(*args, **kwargs)
        except LeftEarlyError:
            return passage.collect()
        raise AssertionError("a pass went through a stage without meeting its end")

    module.forward = forward
