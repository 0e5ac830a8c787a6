"""Training of adapters: losses fall, frozen weights stay, every plan trains the same."""

from functools import cache

import pytest
import torch
from torch.distributed.tensor import DTensor

from search_spaces.plan import Plan
from search_spaces.trial import Anatomy, Measured, TrialRequest
from tests.workers.launch import Group
from tests.workers.one_step import built
from tests.workers.test_anatomy import PARAMETERS
from tests.workers.test_same_training import MORE, WORST_STEP, _accumulate, reference_norm
from tests.workers.values import a_plan, a_request, a_spec
from workers.models.load import build_whole
from workers.worker import Worker

RANK, STEPS = 4, 6
LOSS_TOLERANCE = 2e-5  # relative, as for full training
FP32_BYTES = 4
TRAIN = {"method": "lora", "lora": {"rank": RANK, "alpha": 16}, "learning_rate": 1e-2}
SPEC = a_spec(train=TRAIN, objective={"max_steps": STEPS, "max_seconds": 600})
# The tiny Llama by hand, see test_anatomy: 7 layers of each of 2 blocks, two factors each. q and o
# 64 -> 64, k and v 64 -> 32, gate, up and down 64 -> 128 or back.
ADAPTERS = 2 * RANK * (2 * 128 + 2 * 96 + 3 * 192)
FACTORS = 2 * 7 * 2
COUNTER_BYTES = 4 * FACTORS  # AdamW counts its steps in each tensor's state
PLANS = [
    a_plan(zero_stage=0, checkpoint_ratio=0.5),
    a_plan(zero_stage=0, gradient_as_bucket_view=False, micro_batch=1, attention="eager"),
    a_plan(zero_stage=2, batching="packed"),
    a_plan(zero_stage=3, checkpoint_ratio=1.0),
    a_plan(engine="deepspeed", zero_stage=2, checkpoint_ratio=0.5),
    a_plan(engine="deepspeed", zero_stage=3),
    a_plan(pipeline=2, data=1),
]


def plan_id(plan: Plan) -> str:
    stages = f"-stages{plan.pipeline}" if plan.pipeline > 1 else ""
    return f"{plan.engine}-zero{plan.zero_stage}-{plan.batching}-{plan.attention}{stages}"


@cache
def reference_losses() -> list[float]:
    """Losses of a plain loop over samples after its step on the longest ones."""
    module = build_whole(SPEC.model, SPEC.train, attention="eager").module
    trained = [weight for weight in module.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(
        trained, lr=SPEC.train.learning_rate, weight_decay=SPEC.train.weight_decay
    )
    losses = []
    for step in range(WORST_STEP, STEPS):
        losses.append(_accumulate(module, step))
        optimizer.step()
        optimizer.zero_grad()
    return losses[1:]


@pytest.mark.parametrize(
    "plan",
    [
        pytest.param(plan, id=plan_id(plan), marks=() if number == 3 else MORE)
        for number, plan in enumerate(PLANS)
    ],
)
def test_every_plan_trains_the_same(pair: Group, plan: Plan) -> None:
    outcome = pair.run(TrialRequest(number=0, plan=plan, spec=SPEC))

    assert isinstance(outcome, Measured)
    assert outcome.losses == pytest.approx(reference_losses(), rel=LOSS_TOLERANCE)
    assert outcome.gradient_norm == pytest.approx(reference_norm(SPEC), rel=LOSS_TOLERANCE)


@MORE
def test_one_rank_alone_trains_the_same(alone: Group) -> None:
    outcome = alone.run(a_request(SPEC, data=1, micro_batch=4))

    assert isinstance(outcome, Measured)
    assert outcome.losses == pytest.approx(reference_losses(), rel=LOSS_TOLERANCE)


def _anatomy(group: Group, request: TrialRequest) -> Anatomy:
    outcome = group.run(request)
    assert isinstance(outcome, Measured)
    return outcome.memory.anatomy


def _states(anatomy: Anatomy) -> tuple[int, int, int]:
    return anatomy.weights, anatomy.gradients, anatomy.optimizer_states


@pytest.mark.parametrize("zero_stage", [*(pytest.param(stage, marks=MORE) for stage in (0, 2)), 3])
def test_only_adapters_have_gradients_and_optimizer_states(pair: Group, zero_stage: int) -> None:
    anatomy = _anatomy(pair, a_request(SPEC, zero_stage=zero_stage))

    ranks = 1 if zero_stage == 0 else 2
    trained = FP32_BYTES * ADAPTERS // ranks
    weights = FP32_BYTES * PARAMETERS // ranks + trained
    assert _states(anatomy) == (weights, trained, 2 * trained + COUNTER_BYTES)


def _steps(worker: Worker, request: TrialRequest) -> dict[str, tuple[bool, bool]]:
    """Tells for each weight if it is trained, and if any bit of this rank's part changed."""
    ours = built(worker, request)
    weights = dict(ours.module.named_parameters())
    before = {name: _held(weight) for name, weight in weights.items()}
    for step in range(2):
        ours.step(step)
    return {
        name: (weight.requires_grad, not torch.equal(before[name], _held(weight)))
        for name, weight in weights.items()
    }


def _held(weight: torch.Tensor) -> torch.Tensor:
    local = weight.to_local() if isinstance(weight, DTensor) else weight
    return local.detach().clone()


@pytest.mark.parametrize("zero_stage", [0, 3])
def test_frozen_weights_do_not_move_by_a_bit_and_adapters_do(pair: Group, zero_stage: int) -> None:
    for rank in pair.call(_steps, a_request(SPEC, zero_stage=zero_stage)):
        assert sum(trained for trained, _ in rank.values()) == FACTORS
        assert all(trained == moved for trained, moved in rank.values())
