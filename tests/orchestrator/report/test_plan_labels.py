"""Names of plans: short and distinct."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from orchestrator.report.labels import (
    _LOSSY_WORDS,
    _WORDS,
    fixed_knobs,
    fixed_words,
    lossy_values,
    lossy_words,
    plan_words,
    strategy,
)
from search_spaces.knobs.registry import KNOBS
from search_spaces.plan import CHOICES, Plan
from tests.orchestrator.records import make_plan, make_space, make_spec
from tests.search_spaces.knob_pairs import KNOB_NAMES, Planted, pairs_of


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


def without_words(plan_type: type[Plan]) -> list[str]:
    """Returns a sentence for each knob that tables do not name.

    Data ranks and accumulation follow from the global batch and the other words.
    """
    named = {name for names, _ in _WORDS for name in names}
    return [
        f"{each.name}: no word in tables. Give its Knob in search_spaces/knobs/ a `label`, or add"
        " it to `_WORDS` in orchestrator/report/labels.py, in the word of knobs that it goes with"
        for each in fields(plan_type)
        if each.name not in named | {"data", "accumulation"}
    ]


def test_every_knob_has_a_word() -> None:
    assert not (found := without_words(Plan)), "\n".join(found)


def test_a_new_knob_without_a_label_is_found() -> None:
    found = without_words(Planted)[-1]

    assert found.startswith("static_graph: no word in tables. Give its Knob")


@pytest.mark.parametrize("knob", KNOB_NAMES)
def test_plans_that_differ_in_a_knob_have_different_names(knob: str) -> None:
    same = {
        words
        for pair in pairs_of(knob)
        if (words := plan_words(pair.before)) == plan_words(pair.after)
    }

    assert not same, f"{knob} changes no label: {same}"


@pytest.mark.parametrize(
    ("knobs", "words"),
    [
        ({"data": 1}, "one replica"),
        ({"zero_stage": 2}, "fsdp zero2"),
        ({"zero_stage": 3, "data": 8, "replicas": 2}, "hsdp zero3 2 x 4"),
        ({"engine": "deepspeed"}, "deepspeed zero0"),
        ({"engine": "deepspeed", "zero_stage": 3}, "deepspeed zero3"),
    ],
)
def test_strategies(knobs: dict[str, Any], words: str) -> None:
    assert strategy(make_plan(**knobs)) == words


@pytest.mark.parametrize(
    ("knobs", "words"),
    [
        ({"tensor": 2}, "ddp tp 2 micro"),
        ({"tensor": 2, "sequence_parallel": True}, "ddp tp 2 sp micro"),
        ({"pipeline": 2}, "ddp pp 2 1f1b micro"),
        ({"pipeline": 4, "pipeline_schedule": "interleaved"}, "ddp pp 4 interleaved micro"),
        ({"offload_optimizer": "cpu"}, "ddp offload optimizer cpu micro"),
        ({"offload_optimizer": "cpu", "offload_parameters": "cpu"}, "ddp offload cpu micro"),
        (
            {"offload_optimizer": "cpu", "offload_parameters": "nvme", "aio_threads": 2},
            "ddp offload optimizer cpu weights nvme aio 1024 KiB x 8 x 2 micro",
        ),
        ({"offload_parameters": "cpu", "pin_memory": True}, "ddp offload weights cpu pinned micro"),
        ({"checkpoint_mode": "selective"}, "ckpt 50 % selective sdpa"),
        ({"checkpoint_offload": True}, "ckpt 50 % on host sdpa"),
        ({"attention": "flash_attention_2"}, "ckpt 50 % flash2 packed"),
        ({"compile": True, "optimizer": "adamw_foreach"}, "fp32 compile adamw foreach"),
        ({"bucket_mib": 100, "compression": "powersgd"}, "fp32 bucket 100 send powersgd"),
        ({"gradient_as_bucket_view": False}, "fp32 own gradients"),
        ({"overlap": False, "contiguous_gradients": False}, "no overlap scattered gradients"),
        ({"prefetch_mib": 9, "loader_workers": 2}, "fp32 prefetch 9 loaders 2"),
        ({"loader_pin_memory": True, "allocator": "max_split"}, "pinned batches max split"),
    ],
)
def test_a_knob_that_is_not_at_rest_is_said(knobs: dict[str, Any], words: str) -> None:
    assert words in plan_words(make_plan(**knobs))


def test_words_tell_plans_of_every_kind_apart() -> None:
    space = make_space(
        make_spec(
            space={
                "engine": ["torch", "deepspeed"],
                "tensor": [1, 2],
                "pipeline": [1, 2],
                "pipeline_schedule": ["gpipe", "1f1b"],
                "replicas": [1, 2],
                "checkpoint_ratio": [0, 1],
                "checkpoint_mode": ["full", "selective"],
                "attention": ["sdpa"],
                "compression": ["none", "fp16"],
                "overlap": [True, False],
                "micro_batch": [1, 2],
            }
        ),
        workers=4,
    )
    omit = fixed_knobs(space)

    assert len({plan_words(plan, omit=omit) for plan in space.candidates}) == len(space.candidates)


def test_lossy_knobs_are_named() -> None:
    plan = make_plan(compression="fp16", optimizer="adamw_8bit")

    assert lossy_words(plan, make_spec()) == "adamw 8bit send fp16"
    assert lossy_values(plan, ("optimizer", "compression")) == "adamw 8bit send fp16"
    assert lossy_values(plan, ()) == ""


def test_every_lossy_knob_has_words() -> None:
    lossy = {
        knob.name
        for knob in KNOBS
        if any(knob.lossy(value, make_spec()) for value in CHOICES.get(knob.name, ()))
    }

    assert set(_LOSSY_WORDS) == lossy
