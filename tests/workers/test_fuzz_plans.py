"""Runs a small sample of `make fuzz-plans`: plans over all knobs train the same."""

import random
from itertools import product

import pytest

from search_spaces.plan import CHOICES, Plan
from tests.workers.fuzz import MODELS, Coverage, draw, reference_losses, run_plan
from tests.workers.launch import Groups

SEED = 20  # of a sample that has both engines, a pipeline, tensor ranks and every model


def sample(ranks: int, count: int) -> list[tuple[str, Plan]]:
    """Plans for a number of ranks, alternating models, without compilation."""
    rng = random.Random(SEED + ranks)
    fixed = {"compile": False, "offload_optimizer": "none"}
    names = list(MODELS)
    return [
        (names[number % len(names)], draw(names[number % len(names)], ranks, rng, fixed))
        for number in range(count)
    ]


@pytest.mark.thorough
@pytest.mark.parametrize(("ranks", "count"), [(2, 2), (4, 6)])
def test_legal_plans_train_and_train_the_same(groups: Groups, ranks: int, count: int) -> None:
    references: dict[str, tuple[float, ...]] = {}
    for model, plan in sample(ranks, count):
        if model not in references:
            references[model] = reference_losses(groups.of(1), model)
        ran = run_plan(groups.of(ranks), model, plan, references[model])

        assert ran.fault is None, f"{model} {plan}: {ran.fault}"


@pytest.mark.thorough
def test_values_that_few_plans_have_are_run_too() -> None:
    rng, coverage = random.Random(SEED), Coverage()
    picked = [coverage.pick(draw("llama", 4, rng) for _ in range(16)) for _ in range(40)]

    rare_values = (("reshard_ranks", 2), ("ddp_static_graph", True), ("replicas", 2))
    for knob, rare in (
        *rare_values,
        ("loss", "chunked"),
        ("vocab_multiple", 64),
        ("mlp_tiles", 8),
        ("micro_batch_tokens", 24),
        ("selective_blocks", 1),
    ):
        assert rare in {getattr(plan, knob) for plan in picked}, knob
    assert {"zbv", "dualpipev"} & {plan.pipeline_schedule for plan in picked}


@pytest.mark.thorough
def test_a_draw_reaches_every_value_of_the_knobs_that_are_words() -> None:
    """Some are rare: few plans can have a pipeline without bubbles."""
    rng = random.Random(SEED)
    knobs = ("engine", "zero_stage", "pipeline_schedule", "checkpoint_mode", "batching")
    lacking = {(knob, value) for knob in knobs for value in CHOICES[knob]}
    lacking |= {(knob, degree) for knob in ("tensor", "pipeline") for degree in (1, 2, 4)}
    for model, _ in product(MODELS, range(200)):
        plan = draw(model, 8, rng)
        lacking -= {(knob, getattr(plan, knob)) for knob, _ in lacking}
        if not lacking:
            break

    assert not lacking
