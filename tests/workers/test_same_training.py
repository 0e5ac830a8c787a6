"""Every plan trains the same: the losses of AdamW are those of a plain loop over samples.

The reference is independent of plans: one process, one sample at a time without padding, the
definition of the mean loss over a global batch, and torch's own AdamW. Ranks are real processes.
`test_parity` compares gradients, whose scale AdamW hides.
"""

import itertools
from functools import cache
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

from search_spaces.plan import Plan
from search_spaces.specification.schema import SweepSpec
from search_spaces.trial import Measured, TrialRequest
from tests.workers.launch import Groups
from tests.workers.values import GLOBAL_BATCH, STEPS, a_plan, a_spec
from workers.data.batches import longest_samples, step_samples
from workers.data.dataset import load_dataset
from workers.models.load import build_whole

# fp32 keeps 7 digits; sums run in another order, and AdamW carries it on through 7 updates
LOSS_TOLERANCE = 2e-5  # relative
WORST_STEP = -1
SPEC = a_spec()
MORE = pytest.mark.thorough


# The nine rows of an orthogonal array over four knobs, and one of them with the other attention:
# every pair of values of any two of the five knobs occurs, in 10 plans instead of 162
ROWS = ((0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (2, 0), (2, 1), (2, 2), (0, 0))
ATTENTIONS = (0, 1, 1, 1, 0, 0, 1, 0, 0, 1)


def _every_pair() -> list[Plan]:
    return [
        a_plan(
            zero_stage=(0, 2, 3)[first],
            micro_batch=(1, 2, 4)[second],
            batching=("padded", "grouped", "packed")[(first + second) % 3],
            checkpoint_ratio=(0.0, 0.5, 1.0)[(first + 2 * second) % 3],
            attention=("sdpa", "eager")[attention],
        )
        for (first, second), attention in zip(ROWS, ATTENTIONS, strict=True)
    ]


PLANS = _every_pair()


BY_DEFAULT = (PLANS[3], PLANS[8])  # of DDP and FSDP2


def a_case(plan: Plan) -> Any:
    name = (
        f"zero{plan.zero_stage}-micro{plan.micro_batch}x{plan.accumulation}-{plan.batching}"
        f"-ckpt{plan.checkpoint_ratio:g}-{plan.attention}"
    )
    return pytest.param(plan, id=name, marks=() if plan in BY_DEFAULT else MORE)


HYBRID: dict[str, Any] = {"data": 4, "zero_stage": 3, "replicas": 2, "micro_batch": 1}
OFFLOAD: dict[str, Any] = {
    **{"zero_stage": 2, "offload_optimizer": "cpu", "offload_parameters": "cpu"}
}
TENSOR: dict[str, Any] = {"tensor": 2, "data": 1}
DEEPSPEED: dict[str, Any] = {"engine": "deepspeed"}
OTHERS = (
    pytest.param(a_plan(data=1, micro_batch=4), id="one rank"),
    pytest.param(a_plan(**TENSOR, sequence_parallel=True), id="sequence", marks=MORE),
    pytest.param(a_plan(**OFFLOAD), id="offload"),
    pytest.param(a_plan(**OFFLOAD | {"zero_stage": 3}, pin_memory=True), id="pinned", marks=MORE),
    *(
        pytest.param(a_plan(**knobs, optimizer="adamw_foreach"), id=f"foreach, {name}", marks=MORE)
        for name, knobs in {
            **{"ddp": {}, "zero 3": {"zero_stage": 3}, "hybrid": HYBRID, "offload": OFFLOAD},
            "tensor": TENSOR,
        }.items()
    ),
    pytest.param(a_plan(**DEEPSPEED, zero_stage=2, batching="packed"), id="deepspeed 2"),
    pytest.param(a_plan(**DEEPSPEED, zero_stage=3), id="deepspeed 3", marks=MORE),
    pytest.param(a_plan(**DEEPSPEED), id="deepspeed 0"),
    pytest.param(a_plan(pipeline=2, data=1, micro_batch=1), id="pipeline", marks=MORE),
)


def test_every_pair_of_knob_values_is_among_the_plans() -> None:
    knobs = ("zero_stage", "micro_batch", "batching", "checkpoint_ratio", "attention")
    values = {knob: {getattr(plan, knob) for plan in PLANS} for knob in knobs}
    for one, other in itertools.combinations(knobs, 2):
        met = {(getattr(plan, one), getattr(plan, other)) for plan in PLANS}
        assert met == set(itertools.product(values[one], values[other])), (one, other)


@cache
def reference_losses(clip: float = 0.0) -> list[float]:
    """Returns the losses of a plain loop after its step on the longest samples.

    `clip` bounds the norm of the gradient.
    """
    return losses_with_the_longest(clip)[1:]


@cache
def losses_with_the_longest(clip: float = 0.0) -> list[float]:
    """Returns `reference_losses`, preceded by the loss of the step on the longest samples."""
    module = build_whole(SPEC.model, SPEC.train, attention="eager").module
    optimizer = torch.optim.AdamW(
        module.parameters(), lr=SPEC.train.learning_rate, weight_decay=SPEC.train.weight_decay
    )
    losses = []
    for step in range(WORST_STEP, STEPS):
        losses.append(_accumulate(module, step))
        if clip:
            torch.nn.utils.clip_grad_norm_(module.parameters(), clip)
        optimizer.step()
        optimizer.zero_grad()
    return losses


def reference_norm(spec: SweepSpec = SPEC) -> float:
    """Returns the norm of the gradient of the step on the longest samples, without clipping."""
    module = build_whole(spec.model, spec.train, attention="eager").module
    _accumulate(module, WORST_STEP)
    return torch.nn.utils.clip_grad_norm_(module.parameters(), torch.inf).item()


def _accumulate(module: torch.nn.Module, step: int) -> float:
    """Returns the mean loss over all targets of a step's samples; accumulates its gradient."""
    data = load_dataset(SPEC.data, SPEC.train, 500)
    if step == WORST_STEP:
        numbers = longest_samples(data.lengths, GLOBAL_BATCH)
    else:
        numbers = step_samples(data.lengths, step, GLOBAL_BATCH, SPEC.train.seed)
    samples = [torch.from_numpy(data.sample(number).astype("int64")) for number in numbers]
    targets = sum(len(sample) - 1 for sample in samples)
    loss = 0.0
    for sample in samples:
        logits = module(input_ids=sample[None]).logits[0]
        # a mean times its share, as trainers have it: the sum over targets rounds otherwise in bf16
        part = cross_entropy(logits[:-1], sample[1:]) * ((len(sample) - 1) / targets)
        part.backward()
        loss += part.item()
    return loss


@pytest.mark.cases_by_default(3)
@pytest.mark.parametrize("plan", [*map(a_case, PLANS), *OTHERS])
def test_the_losses_of_a_plan_are_those_of_the_plain_loop(groups: Groups, plan: Plan) -> None:
    outcome = groups.of(plan.world_size).run(TrialRequest(number=0, plan=plan, spec=SPEC))

    assert isinstance(outcome, Measured), outcome
    assert len(outcome.losses) == STEPS
    assert outcome.losses == pytest.approx(reference_losses(), rel=LOSS_TOLERANCE)
    assert outcome.gradient_norm == pytest.approx(reference_norm(), rel=LOSS_TOLERANCE)


def test_rounded_rows_train_as_those_of_the_longest_sample(groups: Groups) -> None:
    losses = []
    for multiple in (1, 64):
        plan = a_plan(micro_batch=4, batching="grouped", pad_multiple=multiple)
        outcome = groups.of(2).run(TrialRequest(number=0, plan=plan, spec=SPEC))
        assert isinstance(outcome, Measured), outcome
        losses.append(outcome.losses)

    assert losses[1] == pytest.approx(losses[0], rel=1e-6)


def test_the_reference_learns_so_that_a_wrong_update_would_show() -> None:
    frozen = build_whole(SPEC.model, SPEC.train, attention="eager").module
    unmoved = [_accumulate(frozen, step) for step in range(STEPS)]

    apart = [abs(a - b) / a for a, b in zip(unmoved, reference_losses(), strict=True)]
    assert min(apart) > 50 * LOSS_TOLERANCE
