"""How the projections of an architecture may be split over tensor ranks."""

from __future__ import annotations

from torch import nn

from search_spaces.facts import TensorFacts


def tensor_facts(module: nn.Module) -> TensorFacts:
    """What tensor parallelism can split in a module, which may be on the meta device."""
    return TensorFacts(refusal=f"{type(module).__name__} has no tensor-parallel plan")
