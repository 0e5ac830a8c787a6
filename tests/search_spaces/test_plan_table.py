"""`plan_table`: a table of plans holds the same plans."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from search_spaces.plan import Plan
from search_spaces.plan_table import PlanTable, constant_codes
from tests.plans import ddp_plan

PLANS = st.lists(
    st.builds(
        ddp_plan,
        data=st.integers(1, 3),
        checkpoint_ratio=st.sampled_from([0, 0.5, 1]),
        compile=st.booleans(),
        attention=st.sampled_from(["sdpa", "eager"]),
    ),
    max_size=20,
)


@given(plans=PLANS)
def test_holds_the_plans_in_their_order(plans: list[Plan]) -> None:
    table = PlanTable.of(plans)

    assert list(table) == plans
    assert len(table) == len(plans)
    for name in ("data", "compile", "attention", "bucket_mib"):
        assert table.column(name).tolist() == [getattr(plan, name) for plan in plans]
    assert table.is_value("data", 2).tolist() == [plan.data == 2 for plan in plans]


@given(plans=PLANS, other=PLANS)
def test_is_equal_where_its_plans_are(plans: list[Plan], other: list[Plan]) -> None:
    """Tables are equal even if their values are in another order."""
    both = PlanTable.of([*other, *plans]).take(np.arange(len(other), len(other) + len(plans)))

    assert both == PlanTable.of(plans)
    assert (PlanTable.of(other) == PlanTable.of(plans)) is (other == plans)


@given(plans=PLANS, asked=PLANS)
def test_finds_a_plan(plans: list[Plan], asked: list[Plan]) -> None:
    table = PlanTable.of(plans)

    for plan in (*plans, *asked, ddp_plan(loader_workers=7)):
        assert table.rows_of(plan).tolist() == [row for row, p in enumerate(plans) if p == plan]


@given(plans=PLANS, mask=st.lists(st.booleans(), min_size=20, max_size=20))
def test_takes_rows_by_mask_or_index(plans: list[Plan], mask: list[bool]) -> None:
    kept = np.array(mask[: len(plans)], dtype=bool)
    table = PlanTable.of(plans)

    expected = [plan for plan, keep in zip(plans, kept, strict=True) if keep]
    assert list(table.take(kept)) == list(table.take(np.flatnonzero(kept))) == expected


def test_a_table_is_a_sequence_of_plans() -> None:
    plans = [ddp_plan(data=data) for data in (1, 2, 3, 4)]
    candidates = PlanTable.of(plans)

    assert candidates == plans
    assert candidates != plans[:3]
    assert candidates != [*plans[:3], ddp_plan(data=9)]
    assert (candidates[0], candidates[-1]) == (plans[0], plans[-1])
    assert isinstance(candidates[1:3], PlanTable)
    assert candidates[1:3] == plans[1:3]
    assert candidates[::-1] == plans[::-1]
    assert candidates.index(plans[2]) == 2
    assert plans[2] in candidates
    assert replace(plans[2], compile=True) not in candidates
    assert "a word" not in candidates
    assert PlanTable.of(candidates) is candidates
    assert PlanTable.of([]) == ()
    with pytest.raises(IndexError):
        candidates[4]


@given(columns=st.lists(st.lists(st.integers(0, 4999), min_size=30, max_size=30), max_size=7))
def test_rows_of_a_group_have_the_same_codes(columns: list[list[int]]) -> None:
    """Seven columns of 5,000 values have more combinations than a 64-bit integer can count."""
    names = [f"column {number}" for number in range(len(columns))]
    arrays = (np.array(column, dtype=np.int32) for column in columns)
    table = PlanTable(
        values={"constant": (0,), **dict.fromkeys(names, tuple(range(5000)))},
        codes={"constant": constant_codes(30), **dict(zip(names, arrays, strict=True))},
    )
    group_of, some_row = table.group(names)

    rows = [tuple(column[row] for column in columns) for row in range(30)]
    assert len(some_row) == len(set(rows))
    assert [rows[some_row[number]] for number in group_of] == rows
