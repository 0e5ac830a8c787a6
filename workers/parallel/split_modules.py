"""Modules of which each tensor rank holds a slice; they take the place of whole ones.

Their weights keep the names that they had. torch's own styles (`ColwiseParallel` and kin) compute
on DTensors, which DistributedDataParallel cannot hold, and know nothing but `nn.Linear` and
`nn.Embedding`; these compute on local slices, whether a weight is a DTensor or a plain tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Literal

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.placement_types import Placement
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

Entrance = Literal["whole", "tokens", "ready"]  # of an input: all of it, some tokens, or cared for
TOKENS = -2  # the dimension of tokens, in rows of them or not
_LAYOUT = "_plimsoll_slice_of"  # of a parameter: the mesh and the placements it was split by


def enter(tensor: torch.Tensor, entrance: Entrance, ranks: TensorRanks) -> torch.Tensor:
    """The whole input, of which each rank's slice of a projection makes another use."""
    if entrance == "tokens":
        return gathered(tensor, ranks, TOKENS)
    return copied(tensor, ranks) if entrance == "whole" else tensor


def local(weight: torch.Tensor) -> torch.Tensor:
    """This rank's slice of a weight."""
    return weight.to_local() if isinstance(weight, DTensor) else weight


class _Projection(nn.Module):
    """What row and column projections share.

    `transposed` says that the weight's first dimension are its inputs, as in GPT-2's Conv1D.
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
        """This rank's slice, outputs first."""
        weight = local(self.weight)
        return weight.t() if self.transposed else weight


class ColumnProjection(_Projection):
    """A linear projection of which each rank computes some outputs."""

    def __init__(
        self, whole: nn.Module, ranks: TensorRanks, *, entrance: Entrance, gathers: bool
    ) -> None:
        super().__init__(whole, ranks)
        self.entrance = entrance
        self.gathers = gathers

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """The outputs of this rank, or of all."""
        bias = None if self.bias is None else local(self.bias)
        outputs = linear(enter(inputs, self.entrance, self.ranks), self.local_weight(), bias)
        return gathered_alike(outputs, self.ranks, -1) if self.gathers else outputs


class RowProjection(_Projection):
    """A linear projection of which each rank takes some inputs; the ranks' outputs are summed.

    With `tokens` each rank gets the sums of its own tokens alone.
    """

    def __init__(self, whole: nn.Module, ranks: TensorRanks, *, cuts: bool, tokens: bool) -> None:
        super().__init__(whole, ranks)
        self.cuts = cuts
        self.tokens = tokens

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """The whole outputs, of all tokens or of this rank's."""
        parts = linear(sliced(inputs, self.ranks, -1) if self.cuts else inputs, self.local_weight())
        if self.tokens:
            outputs = summed_slice(parts, self.ranks, TOKENS)
        else:
            outputs = summed(parts, self.ranks)
        if self.bias is None:
            return outputs
        # a rank that has some tokens has a part of the bias's gradient
        bias = copied(self.bias, self.ranks) if self.tokens else self.bias
        return outputs + bias.to(outputs.dtype)


class VocabularyEmbedding(nn.Module):
    """An embedding of which each rank has some rows; for tokens of other rows it gives 0."""

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
        """The rows of all tokens."""
        places = tokens - self.first
        elsewhere = (places < 0) | (places >= self.rows)
        found = embedding(
            places.masked_fill(elsewhere, 0),
            local(self.weight),
            self.padding_idx,
            scale_grad_by_freq=self.scale_grad_by_freq,
        )
        return summed(found.masked_fill(elsewhere[..., None], 0), self.ranks)


class HeadEmbedding(nn.Module):
    """An embedding with one number per head, of which each rank has those of its heads."""

    def __init__(self, whole: nn.Embedding) -> None:
        super().__init__()
        self.weight = whole.weight

    def forward(self, places: torch.Tensor) -> torch.Tensor:
        """The numbers of this rank's heads."""
        return embedding(places, local(self.weight))


class _SummedGradients:
    """Mixed into a module whose weights each rank uses on other tokens or heads."""

    tensor_ranks: TensorRanks

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        with self._copied_weights():
            return super().forward(*args, **kwargs)  # type: ignore[misc]

    @contextmanager
    def _copied_weights(self) -> Iterator[None]:
        weights: dict[str, Any] = self._parameters  # type: ignore[attr-defined]
        kept = dict(weights)
        for name, weight in kept.items():
            if weight is not None:
                weights[name] = copied(weight, self.tensor_ranks)
        try:
            yield
        finally:
            weights.update(kept)


def sum_gradients(module: nn.Module, ranks: TensorRanks) -> None:
    """Lets a whole module's gradients be summed over the ranks, in place."""
    module.__class__ = _with_summed_gradients(type(module))  # type: ignore[arg-type]
    module.tensor_ranks = ranks  # type: ignore[assignment]


@cache
def _with_summed_gradients(kind: Any) -> type[nn.Module]:
    return type(f"Summed{kind.__name__}", (_SummedGradients, kind), {})


def localize(module: nn.Module) -> None:
    """Makes plain parameters of all DTensors, which share their memory, in place."""

    def plain(weight: nn.Parameter) -> nn.Parameter:
        if not isinstance(weight, DTensor):
            return weight
        local = nn.Parameter(weight.to_local().detach(), requires_grad=weight.requires_grad)
        setattr(local, _LAYOUT, (weight.device_mesh, weight.placements))
        return local

    replace_weights(module, plain)


def as_distributed(weight: torch.Tensor, values: torch.Tensor | None = None) -> torch.Tensor:
    """A weight, or `values` laid out as it is (its gradient), as the DTensor it is a slice of.

    What is no slice, or is a DTensor already, is given back as it is.
    """
    values = weight if values is None else values
    layout: tuple[DeviceMesh, tuple[Placement, ...]] | None = getattr(weight, _LAYOUT, None)
    if layout is None:
        return values
    return DTensor.from_local(values.detach(), *layout, run_check=False)


def replace_weights(module: nn.Module, replacement: Callable[[nn.Parameter], nn.Parameter]) -> None:
    """Puts another parameter in the place of each, wherever it stands: what is tied stays tied."""
    known: dict[int, nn.Parameter] = {}
    kept = []  # an id is of use as long as what it is the id of lives
    for part in module.modules():
        for name, weight in part._parameters.items():
            if weight is not None:
                kept.append(weight)
                known.setdefault(id(weight), replacement(weight))
                part._parameters[name] = known[id(weight)]
