"""The order of plans, as a table of rates and peaks."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.objective import (
    Objective,
    best,
    outcome_counts,
    ranked,
    throughput,
    ties_of_best,
)
from orchestrator.core.records import Record
from search_spaces.trial import Outcome
from tests.orchestrator.core.values import numbers
from tests.orchestrator.records import make_records, make_space, make_spec
from tests.outcomes import every_outcome, make_measured

GOAL = Objective(headroom=0.05)


def records_of(outcomes: Sequence[Outcome]) -> tuple[Record, ...]:
    return make_records(make_space(make_spec()), outcomes)


def measurements(*pairs: tuple[float, float]) -> tuple[Record, ...]:
    """Returns records with these rates (± 1.5 %) and shares of the memory limit."""
    return records_of([make_measured(rate, share) for rate, share in pairs])


@pytest.mark.parametrize(
    ("pairs", "order", "equals"),
    [
        ([], [], []),
        ([(40.0, 0.5), (50.0, 0.951)], [0], [0]),  # above the line
        ([(40.0, 0.5), (50.0, 0.949)], [1, 0], [1]),  # below it
        ([(40.0, 0.8), (40.0, 0.5)], [1, 0], [1, 0]),  # a tie: the lower peak
        ([(40.0, 0.9), (39.5, 0.3), (38.0, 0.2)], [0, 1, 2], [0, 1]),  # intervals that meet
    ],
)
def test_order_and_equals(
    pairs: list[tuple[float, float]], order: list[int], equals: list[int]
) -> None:
    records = measurements(*pairs)

    assert numbers(ranked(records, GOAL)) == order
    assert numbers(ties_of_best(records, GOAL)) == equals
    top = best(records, GOAL)
    assert (None if top is None else top.number) == (order[0] if order else None)


def test_what_was_not_measured_is_never_ranked() -> None:
    records = records_of(every_outcome())

    assert numbers(ranked(records, GOAL)) == [2, 3, 0]
    assert numbers(ranked(records, Objective())) == [4, 2, 3, 0]
    assert throughput(records[1]) == 0.0
    assert outcome_counts(records)["measured"] == 4
    assert sum(outcome_counts(records).values()) == len(records)


pairs = st.lists(st.tuples(st.floats(1.0, 99.0), st.floats(0.1, 1.0)), max_size=10)


@given(pairs)
def test_equals_begin_with_the_best_and_are_a_part_of_the_ranked(
    drawn: list[tuple[float, float]],
) -> None:
    records = measurements(*drawn)
    order, equals = ranked(records, GOAL), ties_of_best(records, GOAL)

    assert equals[:1] == order[:1]
    assert [record for record in order if record in equals] == equals
