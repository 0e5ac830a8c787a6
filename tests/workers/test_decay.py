"""Weights that decay are those of `train.decay`, under every engine and split.

The reference is a plain loop over single samples, whose groups of weights come from transformers'
own Trainer. Decay is large, so that losses show a weight that decays and should not.
"""

from functools import cache
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModel, Trainer

from search_spaces.specification.schema import SweepSpec
from search_spaces.specification.sections import Decay
from search_spaces.trial import Measured, TrialRequest
from tests.workers.launch import Groups
from tests.workers.models.tiny_models import TINY_GPT2
from tests.workers.values import STEPS, a_plan, a_spec
from workers.data.batches import WORST_STEP
from workers.models.built import batch_source
from workers.models.load import build_whole
from workers.parallel.deepspeed_features import missing_for_cpu_adam
from workers.plain_torch.optimizers import decay_groups

TOLERANCE = 2e-5
# its biases and norms are of every kind: projections, LayerNorm, a last norm
GPT2 = {"name": "gpt2", "config": TINY_GPT2.config}


def spec_with(decay: Decay) -> SweepSpec:
    return a_spec(model=GPT2, train={"weight_decay": 30.0, "decay": decay})


def plain_losses(decay: Decay) -> list[float]:
    return plain_losses_with_the_longest(decay)[1:]  # a trial keeps those after its worst step


@cache
def plain_losses_with_the_longest(decay: Decay) -> list[float]:
    spec = spec_with(decay)
    model = build_whole(spec.model, spec.train, attention="eager")
    source, one_by_one = batch_source(model, spec), a_plan(data=1, micro_batch=1)
    module = model.module
    decaying = set(Trainer.get_decay_parameter_names(None, module))  # type: ignore[arg-type]
    left_out = [
        weight
        for name, weight in module.named_parameters()
        if decay == "stock" and name not in decaying
    ]
    ids = {id(weight) for weight in left_out}
    groups: list[dict[str, Any]] = [
        {"params": [weight for weight in module.parameters() if id(weight) not in ids]},
        {"params": left_out, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=spec.train.learning_rate, weight_decay=30.0)
    losses = []
    for number in range(WORST_STEP, STEPS):
        step, loss = source.step(one_by_one, 0, number), 0.0
        for batch in step.batches:
            part = module(**batch.inputs).loss * batch.targets / step.targets
            part.backward()
            loss += part.item()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss)
    return losses


PLANS: dict[str, dict[str, Any]] = {
    "one rank": {"data": 1},
    "tensor": {"tensor": 2, "data": 1},
    "fsdp2": {"zero_stage": 3},
    "pipeline": {"pipeline": 2, "data": 1},
    "foreach": {"optimizer": "adamw_foreach"},
    **{f"zero {stage}": {"engine": "deepspeed", "zero_stage": stage} for stage in range(4)},
    "offloaded": {"engine": "deepspeed", "zero_stage": 2, "offload_optimizer": "cpu"},
}


@pytest.mark.parametrize(
    ("knobs", "decay"),
    [
        pytest.param({}, "stock", id="ddp, stock"),
        *(
            pytest.param(knobs, decay, id=f"{name}, {decay}", marks=pytest.mark.thorough)
            for name, knobs in PLANS.items()
            for decay in ("all", "stock")
        ),
    ],
)
def test_only_the_weights_of_train_decay_decay(
    groups: Groups, knobs: dict[str, Any], decay: Decay
) -> None:
    if "offload_optimizer" in knobs and (lack := missing_for_cpu_adam()):
        pytest.skip(lack)
    plan = a_plan(**knobs)
    request = TrialRequest(number=0, plan=plan, spec=spec_with(decay))
    outcome = groups.of(plan.world_size).run(request)

    assert isinstance(outcome, Measured), outcome
    assert outcome.losses == pytest.approx(plain_losses(decay), rel=TOLERANCE)


def test_a_weight_that_decays_and_should_not_would_show() -> None:
    assert abs(plain_losses("all")[-1] / plain_losses("stock")[-1] - 1) > 100 * TOLERANCE


@pytest.mark.parametrize("kind", ["gpt2", "bert", "llama", "mixtral", "t5"])
def test_stock_leaves_out_what_the_trainer_of_transformers_does(kind: str) -> None:
    small = {"num_hidden_layers": 2, "num_layers": 2, "n_layer": 2}
    with torch.device("meta"):
        module = AutoModel.from_config(AutoConfig.for_model(kind, **small))
    decaying, others = decay_groups(module, "stock")

    names = {id(weight): each for each, weight in module.named_parameters()}
    expected = set(Trainer.get_decay_parameter_names(None, module))  # type: ignore[arg-type]
    assert {names[id(weight)] for weight in decaying["params"]} == expected & set(names.values())
    assert others["weight_decay"] == 0.0
    assert len(others["params"]) + len(decaying["params"]) == len(names)
