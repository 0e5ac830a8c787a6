"""Fitted extents of quantities with known coefficients."""

from __future__ import annotations

import numpy as np
import pytest

from search_spaces.costs.footprint import Extent
from workers.tracing.pass_costs import Grid

WHOLE = Grid(micro_batches=(2, 4))
SPLIT = Grid(micro_batches=(2, 4), degrees=(2, 4))


def test_coefficients_are_found_again() -> None:
    known = Extent(fixed=3, per_sample=5, split_fixed=7, split_per_sample=11)

    assert SPLIT.extent([known.at(*point) for point in SPLIT.points]) == known


def test_what_is_not_split_has_no_share() -> None:
    assert WHOLE.extent([13, 23]) == Extent(fixed=3, per_sample=5)


@pytest.mark.parametrize(("micro_batch", "largest"), [(1, 1000), (4, 1000), (40, 4000)])
def test_a_peak_is_exact_where_another_quantity_becomes_the_largest(
    micro_batch: int, largest: float
) -> None:
    """A weight's gradient (1000), activations (100 a sample), and one that is never largest."""
    quantities = [Extent(fixed=1000), Extent(per_sample=100), Extent(fixed=-10, per_sample=50)]
    seen = [np.array([one.at(batch) for one in quantities], dtype=float) for batch in (2, 4)]

    peak = WHOLE.peak(seen)

    assert peak.at(micro_batch) == largest
    assert len(peak.lines) == 2


def test_a_peak_is_exact_at_degrees_that_were_not_seen() -> None:
    quantities = [Extent(split_fixed=1000), Extent(per_sample=10, split_per_sample=20)]
    seen = [np.array([one.at(*point) for one in quantities]) for point in SPLIT.points]

    peak = SPLIT.peak(seen)

    for batch, degree in [(1, 8), (8, 8), (32, 2)]:
        assert peak.at(batch, degree) == max(one.at(batch, degree) for one in quantities)


def test_a_peak_is_never_below_nothing() -> None:
    assert WHOLE.peak([np.array([-5.0]), np.array([-9.0])]).at(8) == 0
    assert WHOLE.peak([np.array([]), np.array([])]).at(8) == 0


def test_runs_of_other_length_give_their_largest() -> None:
    peak = WHOLE.peak([np.array([1.0, 20.0]), np.array([40.0])])

    assert peak.at(8) == 80
