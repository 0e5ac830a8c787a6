"""How a stack of blocks is cut into pipeline stages."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

StageBlocks = tuple[int, ...]  # indices of the blocks of one stage, in order


def divide(
    weights: Sequence[int], *, stages: int, before: int = 0, after: int = 0
) -> tuple[StageBlocks, ...]:
    """Cuts blocks into runs of one or more, so that the heaviest stage is as light as can be.

    Parameters are the weight: a stage's matmuls and its states are both in proportion to them.
    Among equal cuts the one that fills earlier stages less is taken, since those hold the
    activations of more micro-batches.

    Args:
        weights: Parameters of each block, in order.
        stages: Number of runs.
        before: Parameters that the first stage holds beside its blocks: the embedding.
        after: Those of the last stage: the head.

    Raises:
        ValueError: If there are fewer blocks than stages.
    """
    count = len(weights)
    if not 1 <= stages <= count:
        raise ValueError(f"{count} blocks cannot be cut into {stages} stages of at least one")
    sums = [0, *accumulate(weights)]

    def load(first: int, end: int) -> int:
        ends = (before if first == 0 else 0) + (after if end == count else 0)
        return sums[end] - sums[first] + ends

    # lightest[end]: for the blocks before `end` in so many stages, the heaviest and where it cuts
    lightest: dict[int, tuple[int, StageBlocks]] = {
        end: (load(0, end), (0,)) for end in range(1, count + 1)
    }
    for stage in range(2, stages + 1):
        lightest = {
            end: min(
                (max(lightest[cut][0], load(cut, end)), (*lightest[cut][1], cut))
                for cut in range(stage - 1, end)
            )
            for end in range(stage, count + 1)
        }
    cuts = (*lightest[count][1], count)
    return tuple(tuple(range(first, end)) for first, end in pairwise(cuts))
