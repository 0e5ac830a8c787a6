"""Weights that a pass leaves out, that blocks share, or of another type: trained alike, or refused.

The plans of a kind that no rule refuses run on real ranks and have the losses of one rank.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from search_spaces.facts import ClusterFacts
from search_spaces.rules.base import RuleContext
from search_spaces.rules.registry import refusal
from search_spaces.trial import Measured
from tests.workers.launch import Group
from tests.workers.test_same_training import LOSS_TOLERANCE
from tests.workers.values import a_plan, a_request, a_spec
from workers.models.facts import model_facts

CPU = ClusterFacts(device="cpu", slots=2, memory_limit_bytes=None)
DEEPSPEED = {"engine": "deepspeed"}
FOREACH = {"optimizer": "adamw_foreach"}
PLANS: dict[str, dict[str, Any]] = {
    "ddp": {},
    "ddp, foreach": FOREACH,
    "fsdp2": {"zero_stage": 3},
    "fsdp2 in bf16": {"zero_stage": 2, "precision": "bf16"},
    "zero 0": {**DEEPSPEED},
    "zero 2": {**DEEPSPEED, "zero_stage": 2},
    "zero 3": {**DEEPSPEED, "zero_stage": 3},
    "pipeline": {"pipeline": 2, "data": 1},
}
REFUSED: dict[str, dict[str, str]] = {
    "unused": {},
    "varying": dict.fromkeys(
        ("fsdp2", "fsdp2 in bf16", "zero 2", "zero 3", "pipeline"), "ranks_reduce_the_same_weights"
    ),
    "shared": {
        **dict.fromkeys(("fsdp2", "fsdp2 in bf16"), "fsdp_groups_share_no_weights"),
        "pipeline": "pipeline_can_cut",
    },
    "sixteen bits": {},
    "complex": {
        **dict.fromkeys(PLANS.keys() - {"ddp, foreach"}, "complex_weights_are_whole"),
        "pipeline": "pipeline_can_cut",
    },
}


@pytest.mark.cases_by_default(2)
@pytest.mark.parametrize("kind", REFUSED)
def test_plans_of_a_model_train_alike_or_are_refused(pair: Group, alone: Group, kind: str) -> None:
    name = "tests.workers.odd_models:make_weights"
    spec = a_spec(model={"name": name, "config": {"kind": kind}})
    facts = model_facts(spec.model, spec.train)
    one = alone.run(a_request(spec, data=1, **FOREACH))
    assert isinstance(one, Measured)

    for layout, knobs in PLANS.items():
        refused = refusal(a_plan(**knobs), RuleContext(spec=spec, model=facts, cluster=CPU))
        assert (refused.rule if refused else None) == REFUSED[kind].get(layout), layout
        if refused is None:
            outcome = pair.run(replace(a_request(spec, **knobs), step=facts.step))
            assert isinstance(outcome, Measured), (layout, outcome)
            tolerance = 0.02 if knobs.get("precision") else LOSS_TOLERANCE
            if kind != "varying":  # each rank draws for itself
                assert outcome.losses == pytest.approx(one.losses, rel=tolerance), layout
