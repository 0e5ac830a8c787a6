"""`pack`: all samples kept, rows within capacity, and few of them."""

from hypothesis import given
from hypothesis import strategies as st

from search_spaces.costs.sequence_packing import pack, width


@given(lengths=st.lists(st.integers(1, 64), min_size=1, max_size=40), room=st.integers(0, 64))
def test_every_sample_once_within_the_capacity(lengths: list[int], room: int) -> None:
    capacity = max(lengths) + room

    bins = pack(lengths, capacity)

    assert sorted(place for row in bins for place in row) == list(range(len(lengths)))
    assert width(bins, lengths) <= capacity
    # first fit leaves at most one row half empty
    assert len(bins) == 1 or 2 * sum(lengths) > capacity * (len(bins) - 1)


def test_rows_are_levelled() -> None:
    lengths = [50, 40, 30, 30]

    bins = pack(lengths, 100)

    assert len(bins) == 2
    assert width(bins, lengths) == 80
