"""Formats of forecasts, and the bars with letters."""

from __future__ import annotations

import pytest

from orchestrator.forecast.breakdown import Quantity
from orchestrator.forecast.planning_notes import UnsupportedPrecision, VaryingLengths
from orchestrator.report.plan_tables import quantity_words
from orchestrator.report.plan_text import (
    CATEGORY_WORDS,
    TERM_WORDS,
    interval,
    planning_note_words,
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


def test_every_term_and_category_has_its_words() -> None:
    assert set(TERM_WORDS) == set(TERMS)
    assert set(CATEGORY_WORDS) == set(CATEGORIES)


@pytest.mark.parametrize(
    ("quantity", "words"),
    [
        (Quantity(name="work", value=3.2e15, unit="FLOP"), "work per device 3.2 PFLOP"),
        (Quantity(name="updated_parameters", value=2.181e8, unit="parameters"),
         "parameters updated 218.1 M parameters"),
        (Quantity(name="launched_operators", value=56_640, unit=""), "operators launched 56,640"),
        (Quantity(name="peak_share", value=0.58, unit="share", precision="bf16"),
         "share of the bf16 peak 58 %"),
        (Quantity(name="saved_per_block", value=2**30, unit="B"), "saved per block 1.00 GiB"),
        (Quantity(name="overlapped", value=0.25, unit="s"), "overlapped with compute 250 ms"),
    ],
)  # fmt: skip
def test_quantities(quantity: Quantity, words: str) -> None:
    assert quantity_words(quantity) == words


def test_notes_of_a_plan_are_sentences() -> None:
    old = UnsupportedPrecision(device="V100-32", precision="bf16", faster="fp16")

    assert planning_note_words(old) == (
        "V100-32 has no bf16 units, so bf16 is forecast at the speed of fp32; train.precision:"
        " fp16 would be faster"
    )
    assert planning_note_words(VaryingLengths(longest_tokens=2048, mean_tokens=448.4)) == (
        "samples have up to 2,048 tokens, 448 on average: peaks are for the longest sample, step"
        " times for rows as full as each batching makes them"
    )
