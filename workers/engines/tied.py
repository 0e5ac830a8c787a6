"""Weights that the first and the last stage of a pipeline share: an embedding tied to the head."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn

from workers.engines.gradients import local_tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class TiedWeights:
    """Weights that the first and the last stage both have, kept equal by equal gradients."""

    weights: tuple[nn.Parameter, ...]  # of this rank, in an order on which both ranks agree
    peer: int  # the other rank, by its number in `group`
    group: dist.ProcessGroup
    device: torch.device  # where ranks talk; gradients may lie in host memory

    @torch.no_grad()
    def add_up(self) -> None:
        """Gives both copies the sum of their gradients; both ranks call it together."""
        for weight in self.weights:
            if not weight.requires_grad:
                continue
            if weight.grad is None:
                weight.grad = torch.zeros_like(weight)
            own = local_tensor(weight.grad)
            sent = own.to(self.device, copy=True)
            other = torch.empty_like(sent)
            works = dist.batch_isend_irecv(
                [
                    dist.P2POp(dist.isend, sent, group=self.group, group_peer=self.peer),
                    dist.P2POp(dist.irecv, other, group=self.group, group_peer=self.peer),
                ]
            )
            for work in works:
                work.wait()
            own += other.to(own.device)
