"""Placeholders for modules of other pipeline stages, and boxes of tensors.

A stage runs the model's own forward, with the modules of other stages replaced by cheap ones
without parameters. Embeddings return zeros. Blocks return their input. The block before the
stage's first one returns the received hidden states; the block after its last one takes the
hidden states to send and ends the pass.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockForm:
    """The argument of a block that holds hidden states, and the form of its result.

    `place` is a position or a keyword. `empty` is the number of empty members after the hidden
    states in the tuple that a block returns, None if it returns them bare.
    """

    place: int | str
    empty: int | None

    def taken(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Returns the hidden states among a block's arguments, None if they are missing."""
        if isinstance(self.place, str):
            return kwargs.get(self.place)
        return args[self.place] if self.place < len(args) else None

    def given(self, hidden: torch.Tensor) -> Any:
        """Returns hidden states in the form of a block's result."""
        return hidden if self.empty is None else (hidden, *[None] * self.empty)


class EndOfStageError(Exception):
    """Ends a forward pass after the last block of a stage; `return_outgoing` catches it."""


class HiddenStateChannel:
    """Hidden states of the current pass: those that a stage received and those that it sends."""

    def __init__(self) -> None:
        self._received: torch.Tensor | None = None
        self._outgoing: torch.Tensor | None = None

    def enter(self, hidden: torch.Tensor | None) -> None:
        """Begins a pass with the received hidden states; None in the first stage."""
        self._received, self._outgoing = hidden, None

    def received(self) -> torch.Tensor:
        """Returns the received hidden states."""
        assert self._received is not None
        return self._received

    def leave(self, hidden: torch.Tensor) -> torch.Tensor:
        """Stores the hidden states to send, and ends the pass.

        Raises:
            LeftEarlyError: Always, since the modules that follow belong to other stages.
        """
        self._outgoing = hidden
        raise EndOfStageError

    def collect(self) -> torch.Tensor:
        """Returns the hidden states to send, and empties the passage."""
        outgoing, self._outgoing, self._received = self._outgoing, None, None
        assert outgoing is not None
        return outgoing


class BlockPlaceholder(nn.Module):
    """Placeholder for a block of another stage; without `act` it returns its hidden states."""

    def __init__(
        self,
        block: nn.Module,
        form: BlockForm,
        act: Callable[[torch.Tensor], torch.Tensor] | None = None,
    ) -> None:
        super().__init__()
        self._form, self._act = form, act
        for name, value in vars(block).items():  # a model's loop may read some: attention_type
            if not name.startswith("_") and not isinstance(value, nn.Module | torch.Tensor):
                setattr(self, name, value)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        hidden = self._form.taken(args, kwargs)
        return self._form.given(hidden if self._act is None else self._act(hidden))


class EmbeddingPlaceholder(nn.Module):
    """Placeholder for embeddings: zeros in the shape of hidden states, without their memory."""

    def __init__(self, passage: HiddenStateChannel) -> None:
        super().__init__()
        self._passage = passage
        self._given: torch.Tensor | None = None

    @property
    def is_overwritten(self) -> bool:
        """True if the model wrote into the zeros, whose elements share one place in memory."""
        return self._given is not None and self._given._version > 0

    def forward(self, *_: Any, **__: Any) -> torch.Tensor:
        hidden = self._passage.received()
        self._given = hidden.new_zeros(()).expand(hidden.shape)
        return self._given


def return_outgoing(module: nn.Module, passage: HiddenStateChannel) -> None:
    """Makes `module` return the hidden states to send instead of its output, in place.

    The module's own forward is replaced, not wrapped in another module. So parameters keep
    their names, and FSDP2 sees the tensor that backward starts from.
    """
    original = module.forward

    def forward(*args: Any, **kwargs: Any) -> torch.Tensor:
        try:
            original(*args, **kwargs)
        except EndOfStageError:
            return passage.collect()
        raise AssertionError("a pass ran through a stage without reaching its end")

    module.forward = forward


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSlice:
    """A part of a tensor: in each dimension, the first index and the number of indices."""

    starts: Shape
    sizes: Shape

    def meet(self, other: TensorSlice) -> TensorSlice | None:
        """Returns the intersection with another box, None if it is empty."""
        starts = tuple(map(max, self.starts, other.starts))
        ends = tuple(map(min, self.ends, other.ends))
        sizes = tuple(end - start for start, end in zip(starts, ends, strict=True))
        return TensorSlice(starts=starts, sizes=sizes) if all(size > 0 for size in sizes) else None

    def moved(self, origin: Shape, target: Shape) -> TensorSlice:
        """Returns the box in a tensor in which `target` is the place that `origin` is here."""
        places = zip(self.starts, origin, target, strict=True)
        return TensorSlice(
            starts=tuple(start - old + new for start, old, new in places), sizes=self.sizes
        )

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns the part of a tensor; shares memory."""
        return tensor[tuple(map(slice, self.starts, self.ends))]

    @property
    def ends(self) -> Shape:
        """The index after the last, in each dimension."""
        return tuple(start + size for start, size in zip(self.starts, self.sizes, strict=True))


def whole_slice(shape: Shape) -> TensorSlice:
    """Returns the box of a whole tensor."""
    return TensorSlice(starts=(0,) * len(shape), sizes=shape)
