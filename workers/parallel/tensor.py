"""Blocks split over tensor ranks: tensor parallelism, and the sequence beside it."""

from __future__ import annotations

from search_spaces.render import TorchSettings
from workers.mesh import Mesh
from workers.models.built import BuiltModel


def split_blocks(model: BuiltModel, settings: TorchSettings, mesh: Mesh) -> None:
    """Splits the projections of the model over the tensor ranks, in place."""
    raise NotImplementedError
