"""`pipeline_partition`: cases worked out by hand, and properties of all partitions."""

from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search_spaces.settings.pipeline_partition import partition_blocks

WEIGHTS = st.lists(st.integers(1, 50), min_size=1, max_size=7)


def loads(weights: list[int], cuts: tuple[int, ...], before: int, after: int) -> list[int]:
    sums = [sum(weights[first:end]) for first, end in pairwise((0, *cuts, len(weights)))]
    sums[0] += before
    sums[-1] += after
    return sums


@pytest.mark.parametrize(
    ("weights", "stages", "ends", "expected"),
    [
        ([7] * 6, 3, {}, ((0, 1), (2, 3), (4, 5))),
        ([1] * 5, 2, {}, ((0, 1), (2, 3, 4))),  # what is left over goes to later stages
        # an embedding of two blocks' weight and a head of one: 2 + 2, 1 + 1 + 1 + 1, 3 + 1
        ([10] * 9, 3, {"before": 20, "after": 10}, ((0, 1), (2, 3, 4, 5), (6, 7, 8))),
        ([1] * 4, 2, {"before": 100}, ((0,), (1, 2, 3))),
        ([1, 1, 9, 1, 1], 3, {}, ((0, 1), (2,), (3, 4))),
    ],
)
def test_partitions_by_hand(
    weights: list[int], stages: int, ends: dict[str, int], expected: tuple[tuple[int, ...], ...]
) -> None:
    assert partition_blocks(weights, stages=stages, **ends) == expected


@given(WEIGHTS, st.integers(1, 7), st.integers(0, 60), st.integers(0, 60))
def test_no_other_cut_has_a_lighter_heaviest_stage(
    weights: list[int], stages: int, before: int, after: int
) -> None:
    stages = min(stages, len(weights))

    divided = partition_blocks(weights, stages=stages, before=before, after=after)

    assert [block for blocks in divided for block in blocks] == list(range(len(weights)))
    assert len(divided) == stages
    assert all(divided)
    cuts = tuple(blocks[0] for blocks in divided[1:])
    best = min(
        max(loads(weights, other, before, after))
        for other in combinations(range(1, len(weights)), stages - 1)
    )
    assert max(loads(weights, cuts, before, after)) == best
