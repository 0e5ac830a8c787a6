"""`rules`: one plan for each rule that breaks it and no other."""

from __future__ import annotations

import pytest

from search_spaces.plan import Plan
from search_spaces.rules import RULES, Surroundings, checkpointed_blocks, refusal
from tests.search_spaces.values import a_cluster, a_model, a_plan, a_spec, around

FOUR_RATIOS = a_spec(space={"checkpoint_ratio": [0.0, 0.25, 0.3, 1.0]})

BROKEN: dict[str, tuple[Plan, Surroundings, str]] = {
    "global_batch_is_kept": (
        a_plan(accumulation=3),
        around(),
        "micro_batch 4 x accumulation 3 x data 2 is 24, train.global_batch is 32",
    ),
    "cluster_has_room": (
        a_plan(),
        around(cluster=a_cluster(slots=1)),
        "needs 2 ranks, the cluster has room for 1",
    ),
    "sharding_needs_ranks": (
        a_plan(zero_stage=3, data=1, accumulation=8),
        around(),
        "zero_stage 3 splits state over data ranks, and there is one",
    ),
    "attention_is_offered": (
        a_plan(attention="eager"),
        around(model=a_model(attentions=("sdpa",))),
        "GPT2LMHeadModel has no eager attention, it has sdpa",
    ),
    "checkpointing_needs_blocks": (
        a_plan(checkpoint_ratio=0.5),
        around(model=a_model(blocks=0)),
        "gpt2 has no repeated blocks to recompute",
    ),
    "checkpoint_ratio_is_distinct": (
        a_plan(checkpoint_ratio=0.3),
        around(spec=FOUR_RATIOS, model=a_model(blocks=4)),
        "checkpoint_ratio 0.3 recomputes 1 of 4 blocks, as 0.25 does",
    ),
    "packing_is_kept_apart": (
        a_plan(batching="packed"),
        around(model=a_model(packing=False)),
        "GPT2LMHeadModel does not keep packed samples apart by position ids",
    ),
    "batching_needs_lengths": (
        a_plan(batching="grouped"),
        around(spec=a_spec()),
        "batching grouped equals padded where every sample has the same length",
    ),
}


def test_each_rule_has_a_plan_that_breaks_it() -> None:
    assert set(BROKEN) == set(RULES)


def test_a_legal_plan_breaks_none() -> None:
    assert refusal(a_plan(), around()) is None


@pytest.mark.parametrize("name", BROKEN)
def test_breaks_this_rule_and_no_other(name: str) -> None:
    plan, surroundings, detail = BROKEN[name]

    objections = {
        rule: reason for rule, check in RULES.items() if (reason := check(plan, surroundings))
    }

    assert objections == {name: detail}
    refused = refusal(plan, surroundings)
    assert refused is not None
    assert (refused.rule, refused.detail) == (name, detail)


@pytest.mark.parametrize(
    ("blocks", "searched", "kept"),
    [
        (12, (0.0, 0.25, 0.5, 0.75, 1.0), (0.0, 0.25, 0.5, 0.75, 1.0)),
        (2, (0.0, 0.25, 0.5, 0.75, 1.0), (0.0, 0.5, 1.0)),  # a quarter of two rounds up to one
        (1, (0.0, 0.25, 0.5, 0.75, 1.0), (0.0, 1.0)),
        (4, (0.3, 0.2), (0.2,)),  # both one block: 0.2 and 0.3 are as far off, the lower stays
        (4, (0.9, 0.95), (0.95,)),
    ],
)
def test_keeps_one_ratio_for_each_number_of_blocks(
    blocks: int, searched: tuple[float, ...], kept: tuple[float, ...]
) -> None:
    surroundings = around(
        spec=a_spec(space={"checkpoint_ratio": searched}), model=a_model(blocks=blocks)
    )

    left = tuple(
        ratio for ratio in searched if refusal(a_plan(checkpoint_ratio=ratio), surroundings) is None
    )

    assert left == kept


def test_a_ratio_outside_the_search_is_measured_when_asked_for() -> None:
    surroundings = around(model=a_model(blocks=4))

    assert refusal(a_plan(checkpoint_ratio=0.3), surroundings) is None


@pytest.mark.parametrize(("ratio", "count"), [(0, 0), (0.1, 0), (0.125, 1), (0.5, 2), (1, 4)])
def test_checkpointed_blocks_rounds_half_up(ratio: float, count: int) -> None:
    assert checkpointed_blocks(ratio, 4) == count
