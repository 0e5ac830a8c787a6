"""What a rank writes of a checkpoint: its own part of weights and optimizer states."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_map_only

from workers.engines.gradients import local_tensor

_FILE = "shard.pt"


def write_shard(module: nn.Module, optimizer: torch.optim.Optimizer, folder: Path) -> None:
    """Writes what this rank holds of a model and its optimizer; talks to no other rank.

    Raises:
        OSError: If the folder cannot be written.
    """
    states = {"model": module.state_dict(), "optimizer": optimizer.state_dict()}
    # through a file of Python's: torch's own writer says of a full disk only where it stopped
    with (folder / _FILE).open("wb") as file:
        torch.save(tree_map_only(DTensor, local_tensor, states), file)
