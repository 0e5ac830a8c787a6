"""Collectives of tensor ranks in forward and backward, as autograd functions.

Each is named by its effect in forward; its backward is the transpose. Groups are referenced by
name, so that no model and no autograd graph keeps a process group alive.

Source:
    Shoeybi et al. 2019, arXiv:1909.08053, section 3 (f is `copied`, g is `summed`); Korthikanti
    et al. 2022, arXiv:2205.05198, section 4.2.2 (`gathered` and `summed_slice`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed._functional_collectives as collectives
from torch.distributed.distributed_c10d import GroupName

from workers.process_groups import Mesh

# torch 2.13 renamed both, and warns when the old names are called
_gather = getattr(collectives, "all_gather_single", None) or collectives.all_gather_tensor
_scatter = getattr(collectives, "reduce_scatter_single", None) or collectives.reduce_scatter_tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorRanks:
    """The ranks that split each block, and this rank's index among them."""

    group: GroupName  # the name of the process group
    size: int
    rank: int

    @classmethod
    def of(cls, mesh: Mesh) -> TensorRanks:
        """Returns the tensor ranks of this rank's replica and stage."""
        return cls(
            group=mesh.devices.get_group("tensor").group_name,
            size=mesh.size("tensor"),
            rank=mesh.place.tensor,
        )

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sums a tensor over the ranks."""
        return _wait(collectives.all_reduce(tensor.contiguous(), "sum", self.group))

    def all_gather(self, tensor: torch.Tensor, dim: int) -> torch.Tensor:
        """Concatenates the ranks' tensors along `dim`."""
        return _wait(_gather(tensor.contiguous(), dim % tensor.dim(), self.group))

    def reduce_scatter(self, tensor: torch.Tensor, dim: int) -> torch.Tensor:
        """Returns this rank's slice along `dim` of the sum over the ranks."""
        return _wait(_scatter(tensor.contiguous(), "sum", dim % tensor.dim(), self.group))

    def slice(self, tensor: torch.Tensor, dim: int) -> torch.Tensor:
        """Returns this rank's slice along `dim`."""
        return tensor.chunk(self.size, dim)[self.rank].contiguous()


def copied(tensor: torch.Tensor, ranks: TensorRanks) -> torch.Tensor:
    """Returns the tensor itself; its gradients are summed over the ranks."""
    return _apply(_Copied, tensor, ranks)


def summed(tensor: torch.Tensor, ranks: TensorRanks) -> torch.Tensor:
    """Sums over the ranks, which then all compute the same with it; the gradient is unchanged."""
    return _apply(_Summed, tensor, ranks)


def sliced(tensor: torch.Tensor, ranks: TensorRanks, dim: int) -> torch.Tensor:
    """Returns this rank's slice of a tensor that all ranks have; gradients are gathered."""
    return _apply(_Sliced, tensor, ranks, dim)


def gathered(tensor: torch.Tensor, ranks: TensorRanks, dim: int) -> torch.Tensor:
    """Gathers slices for ranks that each compute a different part; gradients: reduce-scatter."""
    return _apply(_Gathered, tensor, ranks, dim, True)


def gathered_alike(tensor: torch.Tensor, ranks: TensorRanks, dim: int) -> torch.Tensor:
    """Gathers slices for ranks that all compute the same; gradients are sliced."""
    return _apply(_Gathered, tensor, ranks, dim, False)


def summed_slice(tensor: torch.Tensor, ranks: TensorRanks, dim: int) -> torch.Tensor:
    """Returns this rank's slice of the sum over the ranks; gradients are gathered."""
    return _apply(_SummedSlice, tensor, ranks, dim)


def _wait(tensor: torch.Tensor) -> torch.Tensor:
    # at once, since pending work keeps its process group alive
    if isinstance(tensor, collectives.AsyncCollectiveTensor):
        return tensor.wait()
    return tensor  # compiled code inserts its own waits


def _apply(function: Any, *arguments: Any) -> torch.Tensor:
    return function.apply(*arguments)


class _Copied(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, ranks: TensorRanks) -> torch.Tensor:
        ctx.ranks = ranks
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return ctx.ranks.all_reduce(gradients[0]), None


class _Summed(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, tensor: torch.Tensor, ranks: TensorRanks) -> torch.Tensor:
        return ranks.all_reduce(tensor)

    @staticmethod
    def backward(_: Any, *gradients: torch.Tensor) -> Any:
        return gradients[0], None


class _Sliced(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, ranks: TensorRanks, dim: int) -> torch.Tensor:
        ctx.ranks, ctx.dim = ranks, dim
        return ranks.slice(tensor, dim)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return ctx.ranks.all_gather(gradients[0], ctx.dim), None, None


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, ranks: TensorRanks, dim: int, sums: bool
    ) -> torch.Tensor:
        ctx.ranks, ctx.dim, ctx.sums = ranks, dim, sums
        return ranks.all_gather(tensor, dim)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        cut = ctx.ranks.reduce_scatter if ctx.sums else ctx.ranks.slice
        return cut(gradients[0], ctx.dim), None, None, None


class _SummedSlice(_Sliced):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, ranks: TensorRanks, dim: int) -> torch.Tensor:
        ctx.ranks, ctx.dim = ranks, dim
        return ranks.reduce_scatter(tensor, dim)
