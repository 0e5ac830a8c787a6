"""Partition of a stack of blocks into pipeline stages."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise

StageBlocks = tuple[int, ...]  # indices of the blocks of one stage, in order


def partition_blocks(
    weights: Sequence[int], *, stages: int, before: int = 0, after: int = 0
) -> tuple[StageBlocks, ...]:
    """Cuts blocks into runs of one or more, such that the heaviest stage is as light as possible.

    Parameters are the weight, since both the matmuls and the states of a stage are proportional to
    them. Among equal partitions, the one with lighter early stages wins, since these hold the
    activations of more micro-batches.

    Args:
        weights: Parameters of each block, in order.
        stages: Number of runs.
        before: Other parameters of the first stage: the embedding.
        after: Other parameters of the last stage: the head.

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

    # lightest[end]: the best partition of the blocks before `end`, as its heaviest load and cuts
    lightest: dict[int, tuple[int, StageBlocks]] = {
        end: (load(0, end), (0,)) for end in range(1, count + 1)
    }
    for stage in range(2, stages + 1):
        lightest = {
            end: _lightest(lightest, end, range(stage - 1, end), load)
            for end in range(stage, count + 1)
        }
    cuts = (*lightest[count][1], count)
    return tuple(tuple(range(first, end)) for first, end in pairwise(cuts))


def _lightest(
    before: dict[int, tuple[int, StageBlocks]],
    end: int,
    cuts: range,
    load: Callable[[int, int], int],
) -> tuple[int, StageBlocks]:
    """Returns the best partition among the possible first blocks of the last stage.

    A later first block makes the last stage lighter and the stages before it heavier, so only the
    cuts next to the crossing of the two loads can be best.
    """
    crossing = bisect_left(cuts, True, key=lambda cut: before[cut][0] >= load(cut, end))
    near = [cuts[at] for at in (crossing - 1, crossing) if 0 <= at < len(cuts)]
    least = min(max(before[cut][0], load(cut, end)) for cut in near)
    # equally good cuts are adjacent: from the first light last stage to the last light rest
    first = bisect_left(cuts, True, key=lambda cut: load(cut, end) <= least)
    stop = bisect_left(cuts, True, key=lambda cut: before[cut][0] > least)
    return min((least, (*before[cut][1], cut)) for cut in cuts[first:stop])
