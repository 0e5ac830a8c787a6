"""Parsing of knobs, and completion of some knobs to a plan."""

from typing import Any

import pytest

from orchestrator.explain.context import complete_plan, knob_args
from search_spaces.errors import UserError
from search_spaces.plan import Plan
from tests.plans import ddp_plan
from tests.search_spaces.values import GLOBAL_BATCH

DOMAINS: dict[str, tuple[Any, ...]] = {"bucket_mib": (50, 100), "checkpoint_mode": ("selective",)}


@pytest.mark.parametrize(
    ("typed", "asked"),
    [
        (["micro_batch=8"], {"micro_batch": 8}),
        (["micro_batch=8 zero_stage=3"], {"micro_batch": 8, "zero_stage": 3}),
        (["micro_batch=8,compile=true", "engine=DeepSpeed"],
         {"micro_batch": 8, "compile": True, "engine": "deepspeed"}),
        (["checkpoint_ratio=.5"], {"checkpoint_ratio": 0.5}),
        (["pipeline_schedule=1f1b", "micro_batch=2", "micro_batch=2"],
         {"pipeline_schedule": "1f1b", "micro_batch": 2}),
    ],
)  # fmt: skip
def test_knobs_are_read(typed: list[str], asked: dict[str, Any]) -> None:
    assert knob_args(typed) == asked


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        (["micro_batch"], "'micro_batch' must be KNOB=VALUE"),
        (["micro_bach=8"], "'micro_bach' is not a knob; the knobs are engine"),
        (["accumulation=2"], "'accumulation' is not a knob; the knobs are"),
        (["micro_batch=0"], "--plan: micro_batch is 0, must be a whole number of 1 or more"),
        (["micro_batch=" + "9" * 5000], "must be a whole number"),
        (["bucket_mib=9999999999"], "must be at most 999999999"),
        (["compile=[yes"], "must be one of False, True"),
        (["zero_stage=4"], "zero_stage is 4, must be one of 0, 1, 2, 3"),
        (["checkpoint_ratio=nan"], "must lie in 0.0 to 1.0"),
        (["micro_batch=2", "micro_batch=4"], "names micro_batch twice, with 2 and 4"),
        ([" , "], "needs at least one KNOB=VALUE"),
    ],
)
def test_what_is_no_knob_is_a_sentence(typed: list[str], words: str) -> None:
    with pytest.raises(UserError, match=words.replace("(", r"\(")):
        knob_args(typed)


@pytest.mark.parametrize(
    ("like", "asked", "differs"),
    [
        (ddp_plan(), {"micro_batch": 8}, {"micro_batch": 8, "accumulation": 2}),
        # an inactive knob has its default, a knob that becomes active a value that is searched
        (ddp_plan(bucket_mib=50), {"zero_stage": 3}, {"zero_stage": 3, "bucket_mib": 25}),
        (ddp_plan(zero_stage=3), {"zero_stage": 0}, {"zero_stage": 0, "bucket_mib": 50}),
        (ddp_plan(), {"checkpoint_ratio": 0.5},
         {"checkpoint_ratio": 0.5, "checkpoint_mode": "selective"}),
        # data ranks are the remaining ones, unless they are named
        (ddp_plan(data=4, accumulation=2), {"tensor": 2},
         {"tensor": 2, "data": 2, "accumulation": 4}),
        (ddp_plan(data=4, accumulation=2), {"tensor": 2, "data": 4}, {"tensor": 2}),
        (ddp_plan(zero_stage=3), {"offload_optimizer": "cpu"},
         {"offload_optimizer": "cpu", "offload_parameters": "cpu"}),
    ],
)  # fmt: skip
def test_the_rest_is_as_in_the_other_plan(
    like: Plan, asked: dict[str, Any], differs: dict[str, Any]
) -> None:
    made = complete_plan(asked, like, DOMAINS, GLOBAL_BATCH)

    assert made == Plan(**{**like.as_dict(), **differs})
