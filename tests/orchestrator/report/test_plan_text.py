"""Formats of forecasts, and the bars with letters."""

from dataclasses import fields
from typing import get_args, get_type_hints

from orchestrator.core.losses import ToleranceBasis
from orchestrator.core.reasons import BudgetSpent
from orchestrator.forecast.planning_notes import (
    AssumedRates,
    EstimatedDevice,
    UnshownDevice,
    UnsupportedPrecision,
    VaryingLengths,
)
from orchestrator.report.labels import KIND_WORDS
from orchestrator.report.plan_text import (
    CATEGORY_WORDS,
    TERM_WORDS,
    interval,
    planning_note_words,
    significant,
)
from search_spaces.costs.memory import CATEGORIES
from search_spaces.costs.time import TERMS
from search_spaces.facts import Count, LossDependence
from search_spaces.safety.files import packaged_table
from search_spaces.specification.schema import Task
from search_spaces.specification.sections import Metric
from search_spaces.trial import ActivityKind, Anatomy, CrashKind, Estimate


def test_numbers_have_three_digits_and_bounds_of_intervals_two() -> None:
    values = (0, 0.01234, 5.512, 551.2, 5512.0, 1_234_567.0)
    assert [*map(significant, values)] == ["0", "0.0123", "5.51", "551", "5,510", "1,230,000"]
    assert interval(Estimate(low=4.04, value=5, high=9.96)) == "4.0 to 10"
    assert interval(Estimate(low=1234, value=2000, high=3456)) == "1,200 to 3,500"


def test_words_are_those_of_terms_and_categories() -> None:
    assert set(TERM_WORDS) < set(TERMS)  # the others are their own words
    assert set(CATEGORY_WORDS) < set(CATEGORIES)


def test_tables_of_words_have_the_names_that_the_code_knows() -> None:
    words = packaged_table("orchestrator.report", "words.yaml")

    assert set(words["target_counts"]) == set(Count)
    assert set(words["task_losses"]) < set(get_args(Task))
    assert set(words["machine_failures"]) < set(get_args(CrashKind))
    assert set(words["activities"]) < {kind.value for kind in ActivityKind}
    assert set(words["anatomy"]) < {field.name for field in fields(Anatomy)}
    assert set(words["outcome_styles"]) == set(KIND_WORDS)
    assert set(words["tolerance_bases"]) == set(get_args(ToleranceBasis))
    assert set(words["limits"]) == set(get_args(get_type_hints(BudgetSpent)["limit"]))
    assert set(words["dependences"]) == set(get_args(get_type_hints(LossDependence)["on"]))
    for metrics in ("metrics", "best_plans", "better_plans"):
        assert set(words[metrics]) == set(get_args(Metric))


def test_notes_of_a_plan_are_sentences() -> None:
    assert "H99 is not in the catalogue" in planning_note_words(EstimatedDevice(device="H99"))
    assert planning_note_words(UnshownDevice(device="TPU v4")).startswith(
        "TPU v4: not shown on a device; its forecasts rest on data sheets"
    )
    old = UnsupportedPrecision(device="V100-32", precision="bf16", faster="fp16")

    assert planning_note_words(old) == (
        "V100-32 has no bf16 units, so bf16 is forecast at the speed of fp32; train.precision:"
        " fp16 would be faster"
    )
    assert planning_note_words(AssumedRates(terms=("launches", "offload"), share=0.125)) == (
        "12 % of the best plan's step rests on rates of a typical server (kernel launches,"
        " offload traffic); plimsoll doctor --probe measures yours"
    )
    assert planning_note_words(VaryingLengths(longest_tokens=2048, mean_tokens=448.4)) == (
        "samples have up to 2,048 tokens, 448 on average: peaks are for the longest sample, step"
        " times for rows as full as each batching makes them"
    )
