"""`registry.lossy_knobs`: the knobs with which a plan changes the numerics."""

from typing import Any

import pytest

from search_spaces.knobs.registry import lossy_knobs
from tests.plans import ddp_plan
from tests.search_spaces.values import a_spec


@pytest.mark.parametrize(
    ("knobs", "lossy"),
    [
        ({}, ()),
        ({"micro_batch": 2, "optimizer": "adamw_foreach"}, ()),
        ({"optimizer": "adafactor"}, ("optimizer",)),
        ({"states": "bf16", "optimizer": "adamw_8bit"}, ("optimizer", "states")),
    ],
)
def test_lossy_knobs_come_in_the_order_of_the_registry(
    knobs: dict[str, Any], lossy: tuple[str, ...]
) -> None:
    spec = a_spec()
    plan = ddp_plan(precision=spec.train.precision, **knobs)

    assert lossy_knobs(plan, spec) == lossy


def test_a_precision_is_lossy_where_the_specification_asks_for_another() -> None:
    plan = ddp_plan(precision="bf16")

    assert lossy_knobs(plan, a_spec(train={"global_batch": 8, "precision": "bf16"})) == ()
    assert lossy_knobs(plan, a_spec(train={"global_batch": 8, "precision": "fp32"})) == (
        "precision",
    )
