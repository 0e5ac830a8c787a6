"""`plan`: existing plans are valid, and equal plans have one key."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search_spaces.errors import PlanError
from search_spaces.plan import CHOICES, DEFAULTS, Plan
from tests.plans import ddp_plan

PLANS = st.builds(
    Plan,
    engine=st.sampled_from(CHOICES["engine"]),
    zero_stage=st.sampled_from(CHOICES["zero_stage"]),
    micro_batch=st.integers(1, 10**6),
    accumulation=st.integers(1, 10**6),
    checkpoint_ratio=st.floats(0, 1),
    attention=st.sampled_from(CHOICES["attention"]),
    precision=st.sampled_from(CHOICES["precision"]),
    batching=st.sampled_from(CHOICES["batching"]),
    data=st.integers(1, 10**4),
    tensor=st.integers(1, 64),
    offload_optimizer=st.sampled_from(CHOICES["offload_optimizer"]),
    compile=st.booleans(),
    loader_workers=st.integers(0, 64),
)


@given(PLANS)
def test_json_and_back_is_the_same_plan_with_the_same_key(plan: Plan) -> None:
    back = Plan.from_dict(json.loads(json.dumps(plan.as_dict())))

    assert back == plan
    assert back.key == plan.key


def test_the_key_stays_what_it_was() -> None:
    # studies on disk hold keys: a change of the canonical form would orphan their records. Knobs at
    # their default are not part of it, so this key stays when knobs are added
    assert ddp_plan().key == "e1a7a84eccf1"


@pytest.mark.parametrize("name", DEFAULTS)
def test_a_knob_at_rest_is_no_part_of_the_key(name: str) -> None:
    assert ddp_plan(**{name: DEFAULTS[name]}).key == ddp_plan().key


@pytest.mark.parametrize(("one", "other"), [(1, 1.0), (0, -0.0)])
def test_equal_ratios_make_equal_keys(one: float, other: float) -> None:
    assert ddp_plan(checkpoint_ratio=one).key == ddp_plan(checkpoint_ratio=other).key


@pytest.mark.parametrize(
    ("knob", "value"),
    [
        ("micro_batch", 0),
        ("accumulation", True),
        ("checkpoint_ratio", 1.1),
        ("checkpoint_ratio", float("nan")),
        ("zero_stage", 4),
        ("loader_workers", -1),
        ("compile", 1),
        ("offload_optimizer", "disk"),
        ("zero_stage", False),
        ("attention", "flash"),
        ("precision", None),
        ("engine", "jax"),
    ],
)
def test_refuses_a_value_that_is_not_the_knobs(knob: str, value: Any) -> None:
    with pytest.raises(PlanError, match=f"^not a plan: {knob} is ") as caught:
        ddp_plan(**{knob: value})

    assert len(caught.value.problems) == 1


def test_names_every_broken_rule_at_once() -> None:
    with pytest.raises(PlanError) as caught:
        ddp_plan(micro_batch=0, data=0, zero_stage=4)

    assert len(caught.value.problems) == 3


def test_from_dict_names_what_is_missing_and_what_is_no_knob() -> None:
    with pytest.raises(PlanError) as caught:
        Plan.from_dict(
            {"tensors": 2} | {k: v for k, v in ddp_plan().as_dict().items() if k != "data"}
        )

    assert caught.value.problems[0] == "data is missing"
    assert caught.value.problems[1].startswith("tensors is not a knob; the knobs are engine, ")
