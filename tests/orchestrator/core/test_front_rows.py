"""Pareto fronts against their definition, checked on every pair."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.pareto import front_rows, thin_front

PAIRS = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), max_size=12)


@given(PAIRS)
def test_a_front_holds_what_nothing_beats(pairs: list[tuple[int, int]]) -> None:
    cost = np.array([pair[0] for pair in pairs], dtype=float)
    gain = np.array([pair[1] for pair in pairs], dtype=float)

    found = front_rows(cost, gain)

    beaten = {(c, g) for c, g in pairs for d, h in pairs if d <= c and h >= g and (d, h) != (c, g)}
    assert sorted((cost[row], gain[row]) for row in found) == sorted(set(pairs) - beaten)
    assert list(cost[found]) == sorted(cost[found])


def test_thinning_keeps_the_fastest_and_leaves_out_small_gains() -> None:
    gain = np.array([1.0, 1.01, 2.0, 2.05, 4.0])

    kept = thin_front(np.arange(5), gain, step=0.1, most=10)

    assert [gain[row] for row in kept] == [1.01, 2.05, 4.0]
    assert [gain[row] for row in thin_front(np.arange(5), gain, step=0.1, most=2)] == [2.05, 4.0]
