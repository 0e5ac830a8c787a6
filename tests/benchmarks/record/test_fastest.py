"""Plans of a recording that get more repeats."""

from __future__ import annotations

import pytest

from benchmarks.record.order import fastest
from benchmarks.record.rows import Cells
from search_spaces.errors import UserError
from search_spaces.trial import Outcome
from tests.benchmarks.record.values import row
from tests.orchestrator.records import make_plan
from tests.outcomes import make_measured, make_oom

KNOBS = ("micro_batch",)
PLANS = tuple(make_plan(micro_batch=micro, accumulation=8 // micro) for micro in (1, 2, 4, 8))
ONE, TWO, FOUR, EIGHT = PLANS


def rows(micro: int, *endings: float | None) -> list[Cells]:
    """The repeats of a plan: samples/s, or None of what ran out of memory."""
    outcomes: list[Outcome] = [
        make_oom() if rate is None else make_measured(rate) for rate in endings
    ]
    return [
        row(outcome, KNOBS, micro_batch=micro, accumulation=8 // micro) | {"repeat": str(repeat)}
        for repeat, outcome in enumerate(outcomes, 1)
    ]


def test_the_highest_means_are_taken_in_the_order_of_the_space() -> None:
    table = rows(8, 10, 50) + rows(1, 20, 20) + rows(2, 10, 10) + rows(4, 30, 28)

    assert fastest(PLANS, table, KNOBS, 2) == (FOUR, EIGHT)
    assert fastest(PLANS, table, KNOBS, 9) == PLANS


def test_what_fails_in_half_of_its_repeats_is_not_fast() -> None:
    table = rows(1, 20, 20) + rows(2, None, 90) + rows(4, None, None) + rows(8, 10, 10)

    assert fastest(PLANS, table, KNOBS, 1) == (ONE,)
    assert fastest(PLANS, table, KNOBS, 4) == (ONE, EIGHT)


def test_a_plan_that_was_never_measured_is_missing() -> None:
    with pytest.raises(UserError, match="2 of 4 plans are not measured"):
        fastest(PLANS, rows(1, 20) + rows(8, 25), KNOBS, 1)
