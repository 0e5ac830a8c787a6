"""Replicas that average their gradients: DistributedDataParallel."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def replicate(module: nn.Module, group: dist.ProcessGroup, device: torch.device) -> nn.Module:
    """The module in each rank of the group, on `device`, with gradients averaged."""
    device_ids = [device] if device.type == "cuda" else None
    return DistributedDataParallel(module, device_ids=device_ids, process_group=group)
