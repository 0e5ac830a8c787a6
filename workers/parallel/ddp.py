"""Replicas that average their gradients: DistributedDataParallel."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from search_spaces.render import TorchSettings
from workers.parallel.compiling import in_one_piece
from workers.parallel.compression import compress_gradients
from workers.parallel.slices import localize
from workers.process_groups import Mesh


def replicate(
    module: nn.Module, settings: TorchSettings, mesh: Mesh, device: torch.device
) -> nn.Module:
    """The module in each data rank, on `device`, with gradients averaged."""
    localize(module)  # DDP knows no DTensor
    replicas = DistributedDataParallel(
        module,
        device_ids=[device] if device.type == "cuda" else None,
        process_group=mesh.data_group,
        bucket_cap_mb=settings.bucket_mib,
        gradient_as_bucket_view=settings.gradient_as_bucket_view,
    )
    if settings.compile:
        replicas.forward = in_one_piece(replicas.forward)  # type: ignore[method-assign]
    compress_gradients(replicas, settings.compression, mesh.data_group)
    return replicas
