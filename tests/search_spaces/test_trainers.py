"""`trainer`: the space holds the plans that a trainer can take, and no others."""

from dataclasses import replace

import pytest

from search_spaces.errors import SpecError
from search_spaces.rules.base import RuleContext
from search_spaces.settings.trainers import trainer_table
from search_spaces.space import Space, build_space
from tests.search_spaces.values import a_cluster, a_model, a_spec

SPACE = {
    **{"engine": ["torch", "deepspeed"], "zero_stage": [0, 1, 2, 3], "tensor": [1, 2]},
    **{"offload_optimizer": ["none", "cpu", "nvme"], "compile": [False, True]},
    **{"pad_multiple": [1, 8, 64], "precision": ["bf16", "fp16"]},
    **{"micro_batch": [4], "data": [2], "replicas": [1], "checkpoint_ratio": [0.0, 0.5, 1.0]},
}
MODEL = replace(a_model(), task="causal-lm", vocab_size=50257)


def space_of(trainer: str, model: str = "llama-3-8b") -> tuple[Space, RuleContext]:
    spec = a_spec(
        model={"name": model},
        data={"lengths": {128: 1.0, 512: 2.0}},
        train={"global_batch": 32, "sequence_length": 512},
        space=SPACE,
        trainer=trainer,
        cluster={"nvme_folder": "/mnt/nvme"},
    )
    cluster = a_cluster(device="cuda", slots=4)
    context = RuleContext(spec=spec, model=MODEL, cluster=cluster)
    return build_space(context, 2), context


@pytest.mark.parametrize("name", trainer_table())
def test_a_trainers_space_has_all_plans_that_it_takes_and_no_others(name: str) -> None:
    whole, (space, context) = space_of("own")[0], space_of(name)
    trainer, job = trainer_table()[name], (context.spec, context.model, "cuda")

    taken = [plan for plan in whole.candidates if not trainer.refusals(plan, *job)]
    assert 0 < len(taken) < len(whole.candidates)
    assert list(space.candidates) == taken
    assert sum(count for _, count in space.lost) == len(whole.candidates) - len(taken)
    assert space.baseline in taken


def test_a_trainer_without_the_usual_engine_gets_its_own() -> None:
    spec = a_spec(trainer="deepspeed")
    space = build_space(RuleContext(spec=spec, model=MODEL, cluster=a_cluster()), 2)

    assert {plan.engine for plan in space.candidates} == {"deepspeed"}


def test_a_trainer_that_lacks_the_model_leaves_no_plan_and_says_which_it_has() -> None:
    with pytest.raises(
        SpecError, match=r"no plan is legal: .*none of torchtitan's, unchanged: llama-3-8b"
    ):
        space_of("torchtitan", "gpt2")
