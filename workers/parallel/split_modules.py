"""Modules split over tensor ranks, which replace whole modules.

Their weights keep their names. torch's own styles (`ColwiseParallel` and others) compute on
DTensors, which DistributedDataParallel does not support, and only handle `nn.Linear` and
`nn.Embedding`. These modules compute on local slices, for DTensors and plain tensors alike.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Literal

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.functional import embedding, linear

from workers.parallel.collectives import (
    TensorRanks,
    copied,
    gathered,
    gathered_alike,
    sliced,
    summed,
    summed_slice,
)
from workers.plain_torch.slices import LAYOUT, replace_weights

Entrance = Literal["whole", "tokens", "ready"]  # an input: whole, a slice of tokens, or prepared
TOKENS = -2  # the dimension of tokens, with or without a batch dimension


def enter(tensor: torch.Tensor, entrance: Entrance, ranks: TensorRanks) -> torch.Tensor:
    """Prepares an input for projections that are split over ranks.

    Args:
        tensor: The input.
        entrance: "tokens" gathers slices of tokens, "whole" sums gradients over the ranks, and
            "ready" does nothing because a region around the projection has done it.
        ranks: The ranks that split the projection.
    """
    if entrance == "tokens":
        return gathered(tensor, ranks, TOKENS)
    return copied(tensor, ranks) if entrance == "whole" else tensor


def local(weight: torch.Tensor) -> torch.Tensor:
    """Returns this rank's slice of a weight."""
    return weight.to_local() if isinstance(weight, DTensor) else weight


class _Projection(nn.Module):
    """Base of row and column projections.

    `transposed` is set if the weight's first dimension are inputs, as in GPT-2's Conv1D.
    """

    weight: nn.Parameter
    bias: nn.Parameter | None

    def __init__(self, whole: nn.Module, ranks: TensorRanks) -> None:
        super().__init__()
        self.register_parameter("weight", whole._parameters["weight"])
        self.register_parameter("bias", whole._parameters["bias"])
        self.ranks = ranks
        self.transposed = not isinstance(whole, nn.Linear)

    def local_weight(self) -> torch.Tensor:
        """Returns this rank's slice, outputs first."""
        weight = local(self.weight)
        return weight.t() if self.transposed else weight


class ColumnProjection(_Projection):
    """A linear projection whose outputs are split over ranks."""

    def __init__(
        self, whole: nn.Module, ranks: TensorRanks, *, entrance: Entrance, gathers: bool
    ) -> None:
        super().__init__(whole, ranks)
        self.entrance = entrance
        self.gathers = gathers

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Returns the outputs of this rank, or of all ranks if it `gathers`."""
        bias = None if self.bias is None else local(self.bias)
        outputs = linear(enter(inputs, self.entrance, self.ranks), self.local_weight(), bias)
        return gathered_alike(outputs, self.ranks, -1) if self.gathers else outputs


class RowProjection(_Projection):
    """A linear projection whose inputs are split over ranks, with outputs summed over ranks.

    With `tokens` each rank gets the sums of its own tokens only.
    """

    def __init__(self, whole: nn.Module, ranks: TensorRanks, *, cuts: bool, tokens: bool) -> None:
        super().__init__(whole, ranks)
        self.cuts = cuts
        self.tokens = tokens

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Returns the whole outputs, for all tokens or for this rank's tokens."""
        parts = linear(sliced(inputs, self.ranks, -1) if self.cuts else inputs, self.local_weight())
        if self.tokens:
            outputs = summed_slice(parts, self.ranks, TOKENS)
        else:
            outputs = summed(parts, self.ranks)
        if self.bias is None:
            return outputs
        # a rank with a slice of tokens computes only a part of the bias gradient
        bias = copied(self.bias, self.ranks) if self.tokens else self.bias
        return outputs + bias.to(outputs.dtype)


class VocabularyEmbedding(nn.Module):
    """An embedding whose rows are split over ranks; it gives 0 for tokens of other ranks."""

    def __init__(self, whole: nn.Embedding, ranks: TensorRanks) -> None:
        super().__init__()
        self.weight = whole.weight
        self.ranks = ranks
        rows = whole.num_embeddings // ranks.size
        self.first = ranks.rank * rows
        self.rows = rows
        padding = -1 if whole.padding_idx is None else whole.padding_idx - self.first
        self.padding_idx = padding if 0 <= padding < rows else None
        self.scale_grad_by_freq = whole.scale_grad_by_freq

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Returns the rows of all tokens."""
        local_rows = tokens - self.first
        is_remote = (local_rows < 0) | (local_rows >= self.rows)
        vectors = embedding(
            local_rows.masked_fill(is_remote, 0),
            local(self.weight),
            self.padding_idx,
            scale_grad_by_freq=self.scale_grad_by_freq,
        )
        return summed(vectors.masked_fill(is_remote[..., None], 0), self.ranks)


class HeadEmbedding(nn.Module):
    """An embedding with one number per head, split by heads."""

    def __init__(self, whole: nn.Embedding) -> None:
        super().__init__()
        self.weight = whole.weight

    def forward(self, places: torch.Tensor) -> torch.Tensor:
        """Returns the numbers of this rank's heads."""
        return embedding(places, local(self.weight))


class _SummedGradients:
    """Mixin for a module whose weights each rank uses on different tokens or heads."""

    tensor_ranks: TensorRanks

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        with self._copied_weights():
            return super().forward(*args, **kwargs)  # type: ignore[misc]

    @contextmanager
    def _copied_weights(self) -> Iterator[None]:
        weights: dict[str, Any] = self._parameters  # type: ignore[attr-defined]
        originals = dict(weights)
        for name, weight in originals.items():
            if weight is not None:
                weights[name] = copied(weight, self.tensor_ranks)
        try:
            yield
        finally:
            weights.update(originals)


def sum_gradients(module: nn.Module, ranks: TensorRanks) -> None:
    """Makes backward sum an unsplit module's gradients over the ranks, in place."""
    module.__class__ = _with_summed_gradients(type(module))  # type: ignore[arg-type]
    module.tensor_ranks = ranks  # type: ignore[assignment]


@cache
def _with_summed_gradients(kind: Any) -> type[nn.Module]:
    return type(f"Summed{kind.__name__}", (_SummedGradients, kind), {})


def localize(module: nn.Module) -> None:
    """Replaces all DTensors by plain parameters that share their memory, in place."""

    def plain(weight: nn.Parameter) -> nn.Parameter:
        if not isinstance(weight, DTensor):
            return weight
        local = nn.Parameter(weight.to_local().detach(), requires_grad=weight.requires_grad)
        setattr(local, LAYOUT, (weight.device_mesh, weight.placements))
        return local

    replace_weights(module, plain)
