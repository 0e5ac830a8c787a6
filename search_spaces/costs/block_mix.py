"""Mix of recomputation: for each block one of four ways, so that a step is fastest within a peak.

A plan tells blocks apart by their number alone: those of each way are spread evenly. So the mix is
a number of blocks for each way, and bytes and seconds of a step are linear in these.

Source:
    torch/distributed/_tools/sac_ilp.py (torch 2.13), which states the same problem by modules:
    least recomputation such that the bytes of every moment fit.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp

from search_spaces.costs.plan_features import Flags, Numbers

_FULL: Mapping[str, Any] = {
    **{"checkpoint_ratio": 1.0, "checkpoint_mode": "full", "checkpoint_offload": False},
    **{"selective_blocks": 0, "offloaded_blocks": 0},
}
WAYS: tuple[Mapping[str, Any], ...] = (
    {**_FULL, "checkpoint_ratio": 0.0},
    {**_FULL, "checkpoint_mode": "selective"},
    _FULL,
    {**_FULL, "checkpoint_offload": True},
)
"""Knobs of plans whose blocks are all kept, recomputed selectively, recomputed whole, or recomputed
whole from inputs in host memory."""
MIX_KNOBS = tuple(_FULL)


def fastest_mix(
    seconds: Numbers, held_bytes: Numbers, limit_bytes: float, blocks: int, allowed: Flags
) -> tuple[int, ...] | None:
    """Chooses the number of blocks in each of `WAYS`.

    Args:
        seconds: Of a step if all blocks are in one way, of shape (ways,).
        held_bytes: Of a rank at each moment of such a step, of shape (moments, ways).
        limit_bytes: Maximum of a moment.
        blocks: Number of blocks.
        allowed: Marks the ways that blocks may be in.

    Returns:
        The numbers, None if no mix fits.
    """
    shares = np.vstack([np.ones(len(WAYS)), held_bytes / limit_bytes])
    least = np.full(len(shares), -np.inf)
    least[0] = blocks
    solution = milp(
        seconds / seconds.max(),
        integrality=np.ones(len(WAYS)),
        bounds=Bounds(0, np.where(allowed, blocks, 0)),
        constraints=LinearConstraint(shares, least, np.full(len(shares), blocks)),
        options={"mip_rel_gap": 0.0},
    )
    return None if solution.x is None else tuple(round(count) for count in solution.x)


def mix_knobs(counts: Sequence[int]) -> Mapping[str, Any]:
    """Returns the knobs that say how many blocks are in each of `WAYS`."""
    kept, selective, full, offloaded = counts
    recomputed = selective + full + offloaded
    for way, count in zip(WAYS, counts, strict=True):
        if count == recomputed > 0:
            return {**way, "checkpoint_ratio": recomputed / (kept + recomputed)}
    return {
        **_FULL,
        **{"checkpoint_ratio": recomputed / (kept + recomputed)},
        **{"selective_blocks": selective, "offloaded_blocks": offloaded},
    }
