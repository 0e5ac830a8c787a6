"""Partition of a stack of blocks into pipeline stages."""

import functools
from collections.abc import Sequence
from itertools import accumulate, pairwise

from search_spaces.facts import ModelFacts

StageBlocks = tuple[int, ...]  # indices of the blocks of one stage, in order


def partition_blocks(
    weights: Sequence[int], *, stages: int, before: int = 0, after: int = 0
) -> tuple[StageBlocks, ...]:
    """Cuts blocks into runs of one or more, such that the heaviest stage is as light as possible.

    Parameters are the weight, since both the matmuls and the states of a stage are proportional to
    them. Among equal partitions, the one with lighter early stages wins, since these hold the
    activations of more micro-batches.

    Args:
        weights: Parameters of each block, in order; at least one block for each stage.
        stages: Number of runs.
        before: Other parameters of the first stage: the embedding.
        after: Other parameters of the last stage: the head.
    """
    count = len(weights)
    sums = [0, *accumulate(weights)]

    def load(first: int, end: int) -> int:
        ends = (before if first == 0 else 0) + (after if end == count else 0)
        return sums[end] - sums[first] + ends

    # lightest[end]: the best partition of the blocks before `end`, as its heaviest load and cuts
    lightest: dict[int, tuple[int, StageBlocks]] = {
        end: (load(0, end), (0,)) for end in range(1, count + 1)
    }
    for stage in range(2, stages + 1):
        before_cut = lightest
        lightest = {}
        for end in range(stage, count + 1):
            heaviest, cuts, cut = min(
                (max(before_cut[cut][0], load(cut, end)), before_cut[cut][1], cut)
                for cut in range(stage - 1, end)
            )
            lightest[end] = (heaviest, (*cuts, cut))
    ends = (*lightest[count][1], count)
    return tuple(tuple(range(first, end)) for first, end in pairwise(ends))


@functools.lru_cache(maxsize=256)
def model_stages(model: ModelFacts, stages: int) -> tuple[StageBlocks, ...]:
    """Cuts a model's blocks, with its embedding and head at the ends: see `partition_blocks`."""
    return partition_blocks(
        model.block_parameters,
        stages=stages,
        before=model.embedding_parameters,
        after=model.head_parameters,
    )
