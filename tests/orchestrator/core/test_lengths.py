"""The search for the longest length finds it to within a quarter, whatever it is."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as some

from orchestrator.core.lengths import LEAST_TOKENS, MOST_TOKENS, next_length


def tried(longest: int, first: int, growth: float) -> dict[int, bool]:
    """Tries lengths where those of up to `longest` tokens fit."""
    fits: dict[int, bool] = {}
    while (tokens := next_length(fits, first, growth)) is not None:
        assert tokens not in fits
        fits[tokens] = tokens <= longest
    return fits


def test_it_doubles_then_halves_the_gap() -> None:
    assert list(tried(23_000, 8192, 2.0)) == [8192, 16384, 32768, 24576, 20480]
    assert list(tried(23_000, 98304, 2.0)) == [98304, 49152, 24576, 12288, 18432, 21504]
    assert list(tried(100_000, 98304, 1.25)) == [98304, 122880]


@given(
    longest=some.integers(4 * LEAST_TOKENS, MOST_TOKENS // 2),
    first=some.integers(16, 2**20),
    growth=some.sampled_from((1.25, 2.0)),
)
def test_the_longest_is_known_to_within_a_quarter(longest: int, first: int, growth: float) -> None:
    fits = tried(longest, first, growth)
    found = max(tokens for tokens, fit in fits.items() if fit)
    least = min((tokens for tokens, fit in fits.items() if not fit), default=math.inf)

    assert found <= longest < least
    assert longest <= 1.25 * found + 2 * LEAST_TOKENS
    assert len(fits) < 2 * abs(math.log(longest / first, growth)) + 8


@pytest.mark.parametrize("growth", [1.25, 2.0])
def test_it_ends_where_nothing_or_everything_fits(growth: float) -> None:
    assert min(tried(0, 4096, growth)) >= LEAST_TOKENS
    assert max(tried(2**40, 4096, growth)) <= MOST_TOKENS
