"""Formats of forecasts, and the bars with letters."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.forecast.breakdown import Quantity
from orchestrator.report.plan_tables import LETTERS, category_bar, legend, quantity_words
from orchestrator.report.plan_text import (
    BRIEF_TERMS,
    CATEGORY_WORDS,
    TERM_WORDS,
    interval,
    percent,
    significant,
)
from search_spaces.costs.memory import CATEGORIES
from search_spaces.costs.time import TERMS
from search_spaces.trial import Estimate


@pytest.mark.parametrize(
    ("value", "words"),
    [(0, "0"), (0.01234, "0.0123"), (5.512, "5.51"), (55.12, "55.1"), (551.2, "551"),
     (5512.0, "5,510"), (1_234_567.0, "1,230,000"), (1.0, "1.00")],
)  # fmt: skip
def test_three_digits(value: float, words: str) -> None:
    assert significant(value) == words


@pytest.mark.parametrize(
    ("low", "value", "high", "words"),
    [(48.2, 55, 63.4, "48 to 63"), (4.04, 5, 9.96, "4.0 to 10"), (0.0123, 0.02, 0.034,
     "0.012 to 0.034"), (1234, 2000, 3456, "1,200 to 3,500")],
)  # fmt: skip
def test_intervals(low: float, value: float, high: float, words: str) -> None:
    assert interval(Estimate(low=low, value=value, high=high)) == words


def test_shares_are_not_rounded_to_certainty() -> None:
    assert [percent(share) for share in (0, 0.004, 0.5, 0.996, 1)] == [
        "0 %",
        "< 1 %",
        "50 %",
        "> 99 %",
        "100 %",
    ]


def test_every_term_and_category_has_its_words() -> None:
    assert set(TERM_WORDS) == set(TERMS)
    assert set(BRIEF_TERMS) < set(TERMS)
    assert set(CATEGORY_WORDS) == set(CATEGORIES) == set(LETTERS)
    assert len({letter for letter, _ in LETTERS.values()}) == len(LETTERS)
    assert all(words in legend().plain for words in CATEGORY_WORDS.values())


@pytest.mark.parametrize(
    ("quantity", "words"),
    [
        (Quantity(name="work", value=3.2e15, unit="FLOP"), "work 3.2 PFLOP"),
        (Quantity(name="parameters", value=2.181e8, unit="parameters"),
         "parameters 218.1 M parameters"),
        (Quantity(name="launched", value=56_640, unit=""), "launched 56,640"),
        (Quantity(name="of the peak", value=0.58, unit="share"), "of the peak 58 %"),
        (Quantity(name="saved", value=2**30, unit="B"), "saved 1.00 GiB"),
    ],
)  # fmt: skip
def test_quantities(quantity: Quantity, words: str) -> None:
    assert quantity_words(quantity) == words


@given(st.lists(st.floats(0, 50), min_size=9, max_size=9), st.integers(4, 60))
def test_bars_are_as_long_as_what_they_stand_for(sizes: list[float], length: int) -> None:
    held = list(zip(CATEGORIES, sizes, strict=True))

    bar = category_bar(held, 100.0, 95.0, length).plain

    assert len(bar) == length
    for name, size in held:
        letters = bar.count(LETTERS[name][0])
        assert letters <= size / 100 * length + 1
        if sum(sizes) <= 100:
            assert letters >= size / 100 * length - 1
