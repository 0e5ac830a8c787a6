"""Replicas that average their gradients: DistributedDataParallel."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from search_spaces.render import TorchSettings
from workers.mesh import Mesh


def replicate(
    module: nn.Module, settings: TorchSettings, mesh: Mesh, device: torch.device
) -> nn.Module:
    """The module in each data rank, on `device`, with gradients averaged."""
    return DistributedDataParallel(
        module,
        device_ids=[device] if device.type == "cuda" else None,
        process_group=mesh.data_group,
        bucket_cap_mb=settings.bucket_mib,
        gradient_as_bucket_view=settings.gradient_as_bucket_view,
    )
