"""Dominance: plans that need at least as much memory as one that ran out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.search.base import drop_dominated
from search_spaces.plan import Plan
from search_spaces.trial import Outcome, TimedOut
from tests.orchestrator.records import make_plan, make_record
from tests.outcomes import make_measured, make_oom

FAILED = make_plan(micro_batch=4, accumulation=4, checkpoint_ratio=0.5)


@pytest.mark.parametrize(
    ("plan", "kept"),
    [
        (make_plan(micro_batch=8, accumulation=2, checkpoint_ratio=0.5), False),
        (make_plan(micro_batch=4, accumulation=4, checkpoint_ratio=0.25), False),
        (make_plan(micro_batch=8, accumulation=2, checkpoint_ratio=0.75), True),
        (make_plan(micro_batch=2, accumulation=8, checkpoint_ratio=0.0), True),
        (make_plan(micro_batch=8, accumulation=2, zero_stage=3), True),  # who knows
        (make_plan(micro_batch=8, accumulation=2, batching="padded"), True),
    ],
)
def test_more_of_everything_is_dominated(plan: Plan, kept: bool) -> None:
    other = make_plan(micro_batch=1, accumulation=16)
    record = make_record(0, FAILED, make_oom())

    assert list(drop_dominated([plan, other], [record])) == ([plan, other] if kept else [other])


@pytest.mark.parametrize(
    "outcome", [make_measured(), TimedOut(deadline_seconds=9.0, detail="so")], ids=str
)
def test_only_memory_tells(outcome: Outcome) -> None:
    more = make_plan(micro_batch=8, accumulation=2)

    assert list(drop_dominated([more], [make_record(0, FAILED, outcome)])) == [more]


plans = st.builds(
    lambda micro, ratio, stage: make_plan(
        micro_batch=2**micro,
        accumulation=2 ** (5 - micro),
        checkpoint_ratio=ratio,
        zero_stage=stage,
    ),
    st.integers(0, 5),
    st.sampled_from([0.0, 0.5, 1.0]),
    st.sampled_from([0, 2, 3]),
)


@given(untried=st.lists(plans, min_size=1, unique=True), failed=st.lists(plans))
def test_something_is_always_left(untried: list[Plan], failed: list[Plan]) -> None:
    """Dominance is not certain: if every plan is dominated, all may still be tried."""
    records = [make_record(number, plan, make_oom()) for number, plan in enumerate(failed)]
    hopeful = list(drop_dominated(untried, records))

    assert hopeful
    assert [plan for plan in untried if plan in hopeful] == hopeful
    assert hopeful == untried or not set(hopeful) & set(failed)
