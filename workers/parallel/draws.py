"""Random numbers of training, such as dropout masks: from `train.seed`, and from a rank's place.

Ranks that hold the same samples and layers draw alike, as their results must be equal. Others draw
otherwise: data ranks, pipeline stages, and tensor ranks where each has its own tokens.

Source:
    Korthikanti et al. 2022, arXiv:2205.05198; Megatron-LM's `tensor_parallel/random.py` has a
    generator of its own for regions in which ranks hold different tokens.
"""

import random
import zlib
from dataclasses import dataclass, field

import numpy as np
import torch

from search_spaces.plan import Plan
from search_spaces.settings.rank_layout import draw_seed
from workers.process_groups import Mesh


def seed_draws(seed: int, plan: Plan, mesh: Mesh | None) -> None:
    """Seeds what training draws on this rank: torch on all devices, NumPy and Python.

    Args:
        seed: `train.seed`.
        plan: The plan of the rank.
        mesh: The ranks of the plan; None for a single one.
    """
    stage, data = (mesh.place.stage, mesh.place.data) if mesh is not None else (0, 0)
    own = draw_seed(seed, stage * plan.data + data)
    torch.manual_seed(own)
    random.seed(own)
    np.random.seed(own)


@dataclass(slots=True)
class TokenDraws:
    """Random numbers of a tensor rank between `enter` and `leave`, where it has its own tokens.

    The state inside follows from the one outside and the rank, not from earlier passes, so that
    a recomputed block draws what it drew. A pass that draws nothing changes no state.
    """

    rank: int
    _outside: list[torch.Tensor] = field(default_factory=list)
    _inside: list[torch.Tensor] = field(default_factory=list)

    def enter(self, device: torch.device) -> None:
        """Switches to this rank's numbers."""
        generators = _generators(device)
        self._outside = [generator.get_state() for generator in generators]
        seed = self.rank
        for state in self._outside:
            seed = zlib.crc32(state.numpy().tobytes(), seed)
        for generator in generators:
            generator.manual_seed(seed)
        self._inside = [generator.get_state() for generator in generators]

    def leave(self, device: torch.device) -> None:
        """Switches back, one number on if any was drawn inside: else the next pass drew alike."""
        generators = _generators(device)
        for generator, outside, inside in zip(generators, self._outside, self._inside, strict=True):
            has_drawn = not torch.equal(generator.get_state(), inside)
            generator.set_state(outside)
            if has_drawn:
                torch.rand(1, generator=generator, device=generator.device)


def _generators(device: torch.device) -> list[torch.Generator]:
    found = [torch.default_generator]
    if device.type != "cpu":
        found.append(torch.get_device_module(device).default_generators[device.index or 0])
    return found
