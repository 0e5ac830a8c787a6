"""Probes of users' functions: batch statistics, sums, and data that is not the same again."""

from __future__ import annotations

from typing import Any

import pytest

from search_spaces.facts import ClusterFacts, ModelFacts
from search_spaces.rules.base import RuleContext
from search_spaces.space import Space, build_space
from search_spaces.spec.schema import SweepSpec
from tests.workers.depending_models import Data, Way
from workers.models.function_probe import with_function_findings
from workers.models.load import describe

CPU = ClusterFacts(device="cpu", slots=2, memory_limit_bytes=None)
SAME = 1e-5


def spec_of(
    function: str = "make", space: dict[str, Any] | None = None, **config: Any
) -> SweepSpec:
    return SweepSpec.model_validate(
        {
            "model": {"name": f"tests.workers.depending_models:{function}", "config": config},
            "train": {"global_batch": 8, "sequence_length": 8, "precision": "fp32"},
            "space": space or {},
        }
    )


def facts_of(spec: SweepSpec) -> ModelFacts:
    return with_function_findings(describe(spec.model, spec.train), spec.model, spec.train)


def space_of(spec: SweepSpec) -> Space:
    return build_space(RuleContext(spec=spec, model=facts_of(spec), cluster=CPU), 2)


def micro_batches(spec: SweepSpec) -> set[int]:
    return {plan.micro_batch for plan in space_of(spec).candidates}


def test_a_mean_over_samples_that_are_what_their_numbers_say_is_left_alone() -> None:
    facts = facts_of(spec_of())

    assert facts.dependences == ()
    assert facts.batch_difference < SAME
    assert micro_batches(spec_of()) == {1, 2, 4}


@pytest.mark.parametrize(("way", "least"), [("normalised", 0.01), ("summed", 0.9)])
def test_a_loss_that_depends_on_the_samples_beside_one(way: Way, least: float) -> None:
    facts = facts_of(spec_of(way=way))

    assert facts.batch_difference > least
    assert [found.on for found in facts.dependences] == ["batch"]
    assert micro_batches(spec_of(way=way)) == {1}
    named = {"micro_batch": [4, 2]}  # the first is what to train with
    assert micro_batches(spec_of(way=way, space=named)) == {4}


def test_a_loss_that_one_sample_does_not_have() -> None:
    spec = spec_of(way="needs two")

    assert facts_of(spec).smallest_micro_batch == 2
    assert micro_batches(spec) == {2}
    assert micro_batches(spec_of(way="needs two", space={"micro_batch": [4, 2]})) == {4}
    refused = dict(space_of(spec).ruled_out)
    assert refused["micro_batch_keeps_the_loss"] > 0


@pytest.mark.parametrize("data", ["own state", "by order", "by build", "by batch"])
def test_batches_that_are_not_the_same_for_the_same_samples(data: Data) -> None:
    facts = facts_of(spec_of(data=data))

    assert facts.data_difference > 0.05
    assert [(found.on, found.knobs) for found in facts.dependences] == [("data", ())]
    assert micro_batches(spec_of(data=data)) == {1, 2, 4}  # no knob changes it
    assert space_of(spec_of(data=data)).dependences == facts.dependences


def test_a_large_model_is_not_built_for_a_probe() -> None:
    assert facts_of(spec_of("make_large")).data_difference == 0.0
