"""`neighbours`: plans that differ in one knob and in its consequences."""

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search_spaces.plan import Plan
from search_spaces.plan_table import PlanTable, differing_knobs, neighbours
from search_spaces.space import build_space
from tests.plans import ddp_plan
from tests.search_spaces.values import a_cluster, a_spec, around

FSDP = ddp_plan(zero_stage=3)


@pytest.mark.parametrize(
    ("plan", "changes", "knobs"),
    [
        (ddp_plan(), {}, ()),
        (ddp_plan(), {"batching": "packed"}, ("batching",)),
        (ddp_plan(), {"micro_batch": 8, "accumulation": 2}, ("micro_batch",)),
        (ddp_plan(), {"micro_batch": 8, "accumulation": 2, "compile": True},
         ("micro_batch", "compile")),
        # a knob that is inactive in one of the two has its default there
        (ddp_plan(bucket_mib=100), {"zero_stage": 3, "bucket_mib": 25}, ("zero_stage",)),
        (FSDP, {"zero_stage": 0, "bucket_mib": 100}, ("zero_stage",)),
        (ddp_plan(checkpoint_ratio=0.5, checkpoint_mode="selective"),
         {"checkpoint_ratio": 0.0, "checkpoint_mode": "full"}, ("checkpoint_ratio",)),
        (ddp_plan(checkpoint_ratio=0.5, checkpoint_mode="selective"),
         {"checkpoint_ratio": 1.0, "checkpoint_mode": "full"},
         ("checkpoint_ratio", "checkpoint_mode")),
        # data ranks are what is left
        (ddp_plan(data=4, accumulation=2), {"tensor": 2, "data": 2, "accumulation": 4},
         ("tensor",)),
        (ddp_plan(), {"data": 4, "accumulation": 2}, ("data",)),
        (FSDP, {"tensor": 2, "data": 1, "zero_stage": 0, "accumulation": 8}, ("tensor",)),
        (ddp_plan(tensor=2, data=1, accumulation=8),
         {"tensor": 1, "data": 2, "zero_stage": 3, "accumulation": 4}, ("tensor",)),
        (ddp_plan(data=4, accumulation=2),
         {"tensor": 2, "data": 2, "zero_stage": 3, "accumulation": 4}, ("tensor", "zero_stage")),
        # FSDP offloads all or nothing, DeepSpeed each by itself
        (FSDP, {"offload_optimizer": "cpu", "offload_parameters": "cpu", "pin_memory": True},
         ("offload_optimizer",)),
        (ddp_plan(engine="deepspeed", zero_stage=3),
         {"offload_optimizer": "cpu", "offload_parameters": "cpu"},
         ("offload_optimizer", "offload_parameters")),
    ],
)  # fmt: skip
def test_knobs_that_differ_by_themselves(
    plan: Plan, changes: Mapping[str, Any], knobs: tuple[str, ...]
) -> None:
    other = Plan(**{**plan.as_dict(), **changes})

    assert differing_knobs(plan, other) == knobs
    assert differing_knobs(other, plan) == knobs


def test_neighbours_are_told_by_knob_and_row() -> None:
    others = [
        ddp_plan(zero_stage=3),
        ddp_plan(),
        ddp_plan(micro_batch=8, accumulation=2, batching="packed"),
        ddp_plan(micro_batch=8, accumulation=2),
        ddp_plan(batching="packed"),
        ddp_plan(zero_stage=2),
    ]

    found = neighbours(ddp_plan(), PlanTable.of(others))

    assert list(found.items()) == [
        (0, "zero_stage"),
        (5, "zero_stage"),
        (3, "micro_batch"),
        (4, "batching"),
    ]


SPACE = build_space(
    around(
        spec=a_spec(
            space={
                "zero_stage": [0, 3],
                "bucket_mib": [25, 100],
                "tensor": [1, 2],
                "engine": ["torch", "deepspeed"],
                "checkpoint_mode": ["full", "selective"],
                "checkpoint_ratio": [0.0, 0.5, 1.0],
            }
        ),
        cluster=a_cluster(slots=4),
    ),
    4,
)
ROWS = st.integers(0, len(SPACE.table) - 1)


@given(one=ROWS, other=ROWS)
def test_columns_tell_what_plans_tell_one_by_one(one: int, other: int) -> None:
    plan, theirs = SPACE.table.plan(one), SPACE.table.plan(other)
    knobs = differing_knobs(plan, theirs)

    assert knobs == differing_knobs(theirs, plan)
    assert bool(knobs) == (plan != theirs)
    found = neighbours(plan, SPACE.table)
    assert found.get(other) == (knobs[0] if len(knobs) == 1 else None)
