"""Wording of plans, outcomes and quantities."""

from __future__ import annotations

import pytest

from orchestrator.view import plan_words
from orchestrator.view.words import (
    brief_outcome,
    duration,
    fixed_knobs,
    fixed_words,
    gib,
    lossy_words,
    number,
    outcome_words,
    spread,
)
from search_spaces.estimate import Estimate
from search_spaces.spec.schema import GIB
from tests.orchestrator.records import (
    make_conditions,
    make_measured,
    make_oom,
    make_plan,
    make_space,
    make_spec,
)


def test_a_plan_reads_as_a_person_would_say_it() -> None:
    plan = make_plan(accumulation=4)

    assert plan_words(plan) == "ddp micro 4 x 4 ckpt 50 % sdpa packed fp32"
    assert plan_words(make_plan(zero_stage=3, checkpoint_ratio=0.0)) == (
        "fsdp zero3 micro 4 x 2 sdpa packed fp32"
    )


def test_words_tell_every_plan_of_a_space_apart() -> None:
    space = make_space(make_spec(space={"precision": ["fp32", "bf16"], "data": [1, 2]}))
    omit = fixed_knobs(space)

    told = {plan_words(plan, omit=omit) for plan in space.candidates}

    assert len(told) == len(space.candidates) > 100


def test_what_all_plans_share_is_said_once() -> None:
    space = make_space(make_spec(space={"attention": ["sdpa"], "batching": ["padded"]}))

    assert fixed_words(space) == "sdpa padded fp32"
    assert plan_words(space.baseline, omit=fixed_knobs(space)) == "ddp micro 1 x 8"


def test_a_precision_that_the_spec_does_not_train_in_is_lossy() -> None:
    spec = make_spec()

    assert lossy_words(make_plan(precision="bf16"), spec) == "bf16"
    assert lossy_words(make_plan(), spec) == ""


def test_a_throttled_measurement_is_labelled() -> None:
    outcome = make_measured(conditions=make_conditions(("power cap",)))

    assert outcome_words(outcome).endswith("(throttled: power cap)")


def test_brief_words_keep_what_was_wanted() -> None:
    assert brief_outcome(make_oom(1.31)) == "out of memory, wanted 131 %"
    assert brief_outcome(make_oom(None, where="host")) == "out of host memory"


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(0, "0 s"), (59.6, "1 min"), (200, "3 min 20 s"), (600, "10 min"), (3900, "1 h 05 min")],
)
def test_duration(seconds: float, told: str) -> None:
    assert duration(seconds) == told


@pytest.mark.parametrize(
    ("value", "told"),
    [(0.0, "0"), (0.01234567, "0.01235"), (41.2, "41.20"), (1234567.0, "1,234,567")],
)
def test_numbers_have_four_significant_digits(value: float, told: str) -> None:
    assert number(value) == told


def test_an_interval_has_the_decimals_of_its_value() -> None:
    assert spread(Estimate(value=41.2, low=40.6, high=41.8)) == "41.2 ± 0.6"
    assert spread(Estimate(value=0.412, low=0.406, high=0.418)) == "0.412 ± 0.006"


def test_memory_is_shown_in_gib() -> None:
    assert [gib(0.4 * GIB), gib(3.456 * GIB), gib(74.25 * GIB)] == ["0.400", "3.46", "74.2"]
