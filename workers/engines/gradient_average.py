"""Averages of gradients over data ranks, where neither DDP nor FSDP2 makes them."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch._utils import _flatten_dense_tensors, _take_tensors, _unflatten_dense_tensors

from workers.plain_torch.slices import local_tensor

_MIB = 2**20


def own_gradients(weights: Iterable[nn.Parameter]) -> Iterator[torch.Tensor]:
    """Yields this rank's part of each trained weight's gradient, made of zeros if there is none."""
    for weight in weights:
        if not weight.requires_grad:
            continue
        if weight.grad is None:
            weight.grad = torch.zeros_like(weight)
        yield local_tensor(weight.grad)


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientAverage:
    """Averages the gradients of replicas after the last backward pass of a step.

    Attributes:
        weights: Of this rank, in the same order on all data ranks.
        bucket_mib: Gradients that are sent together, in MiB; a larger one goes alone.
        group: The data ranks.
    """

    weights: Sequence[nn.Parameter]
    bucket_mib: int
    group: dist.ProcessGroup | None

    @torch.no_grad()
    def run(self) -> None:
        """Sets each gradient to its mean; all data ranks call it together.

        A weight that took no part in a rank's step, such as an expert without tokens, counts as a
        gradient of zeros there.
        """
        ranks = dist.get_world_size(self.group)
        for bucket in _take_tensors(own_gradients(self.weights), self.bucket_mib * _MIB):
            whole = _flatten_dense_tensors(bucket)
            dist.all_reduce(whole, group=self.group)
            whole /= ranks
            for gradient, mean in zip(bucket, _unflatten_dense_tensors(whole, bucket), strict=True):
                gradient.copy_(mean)
