"""States in bf16: steps are those of a plain loop that holds them so, in half of the memory."""

from functools import cache
from typing import Any

import pytest
import torch
from torch import nn

from orchestrator.forecast.calibration import Footprints
from orchestrator.forecast.planner import Planner, PlanningReport
from orchestrator.forecast.request import planning_request
from search_spaces.costs.calibration import shipped_calibration
from search_spaces.errors import missing_extra
from search_spaces.hardware.catalogue import find_device
from search_spaces.specification.schema import SweepSpec
from search_spaces.specification.sections import TrainSpec
from search_spaces.trial import Measured
from tests.workers.launch import Group
from tests.workers.test_same_training import (
    OFFLOAD,
    SPEC,
    TENSOR,
    WORST_STEP,
    _accumulate,
    reference_losses,
)
from tests.workers.values import STEPS, a_request
from workers.models.load import build_whole, describe
from workers.plain_torch.optimizers import make_optimizer
from workers.plain_torch.update import Clipping, GradientNorm

LOSS_TOLERANCE, NORM_TOLERANCE = 5e-3, 1e-2  # relative; bf16 keeps 2 digits, and sums differ
STATE_PARTS = ("weights", "gradients", "optimizer")
STEPS_APART = 100
RATE = 1e-5  # below half of what bf16 resolves at 1
SGD = TrainSpec.model_validate(
    SPEC.train.model_dump() | {"optimizer": "sgd", "momentum": 0.9, "learning_rate": 0.03}
)
LAYOUTS: dict[str, dict[str, Any]] = {
    **{"ddp": {}, "one rank": {"data": 1}, "fsdp2": {"zero_stage": 3}, "offload": OFFLOAD},
    **{"gathered once a step": {"zero_stage": 2}, "tensor": TENSOR},
    **{"pipeline": {"pipeline": 2, "data": 1, "micro_batch": 1}},
    **{f"zero {stage}": {"engine": "deepspeed", "zero_stage": stage} for stage in (1, 2, 3)},
    "chunked loss, checkpoints": {"zero_stage": 3, "loss": "chunked", "checkpoint_ratio": 0.5},
}
BY_DEFAULT = ("ddp", "fsdp2")
needs_torchao = pytest.mark.skipif(
    missing_extra("torchao") is not None, reason=str(missing_extra("torchao"))
)


@cache
def in_plain_bf16() -> tuple[list[float], float]:
    """Returns losses and the first gradient's norm of a plain loop under SGD."""
    module = build_whole(SPEC.model, SPEC.train, attention="eager").module
    for weight in module.parameters():
        weight.data = weight.data.to(torch.bfloat16)
    optimizer = torch.optim.SGD(module.parameters(), lr=SGD.learning_rate, momentum=0.9)
    losses, norms = [], []
    for step in range(WORST_STEP, STEPS):
        losses.append(_accumulate(module, step))
        norms.append(nn.utils.get_total_norm([one.grad.float() for one in module.parameters()]))
        optimizer.step()
        optimizer.zero_grad()
    return losses[1:], norms[0].item()


@pytest.mark.parametrize(
    "layout",
    [
        pytest.param(name, marks=() if name in BY_DEFAULT else pytest.mark.thorough)
        for name in LAYOUTS
    ],
)
def test_bf16_states_train_as_a_plain_loop_in_bf16_and_take_half(groups: Any, layout: str) -> None:
    knobs = {**LAYOUTS[layout], "precision": "bf16", "optimizer": "sgd"}
    spec = SPEC.model_copy(update={"train": SGD})
    losses, norm = in_plain_bf16()
    ranks = knobs.get("data", 2) * knobs.get("tensor", 1) * knobs.get("pipeline", 1)
    group: Group = groups.of(ranks)

    whole, half = (group.run(a_request(spec, **knobs, states=one)) for one in ("fp32", "bf16"))

    assert isinstance(whole, Measured), whole
    assert isinstance(half, Measured), half
    assert half.losses == pytest.approx(losses, rel=LOSS_TOLERANCE)
    assert half.gradient_norm == pytest.approx(norm, rel=NORM_TOLERANCE)
    full, held = whole.memory.anatomy, half.memory.anatomy
    if knobs.get("engine") == "deepspeed":  # whose weights and gradients are in bf16 anyway
        assert (held.weights, held.gradients) == (full.weights, full.gradients)
        assert 2 * held.optimizer_states == full.optimizer_states  # and the copy that is updated
        return
    for part in ("weights", "gradients", "optimizer_states"):
        assert 2 * getattr(held, part) == getattr(full, part), part


def test_the_norm_of_many_small_gradients_is_summed_in_fp32_and_clips_right() -> None:
    weights = [nn.Parameter(torch.zeros(size, dtype=torch.bfloat16)) for size in (9999, 20_011)]
    for one in weights:
        one.grad = torch.full_like(one, 0.0078125)
    norm = GradientNorm(group=None, holders=1, device=torch.device("cpu"))

    assert norm.of(weights).item() == pytest.approx(0.0078125 * 30_010**0.5, rel=1e-5)
    Clipping(max_norm=0.5, norm=norm).apply(weights)
    assert norm.of(weights).item() == pytest.approx(0.5, rel=5e-3)  # each is rounded


def _moved(kind: str) -> list[torch.Tensor]:
    """Returns two copies of a weight after equal steps, among other draws of random numbers."""
    results = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        module = nn.Linear(512, 64, bias=False)
        module.weight.data = torch.ones_like(module.weight, dtype=torch.bfloat16)
        optimizer = make_optimizer(
            module, kind=kind, learning_rate=RATE, weight_decay=0.0, decay="all"
        )
        for _ in range(STEPS_APART):
            module.weight.grad = torch.ones_like(module.weight)
            optimizer.step()
        results.append(module.weight.detach().float())
    return results


@needs_torchao
def test_stochastic_rounding_keeps_small_updates_on_average_and_replicas_equal() -> None:
    nearest, _ = _moved("adamw_fused")
    one, other = _moved("adamw_stochastic")

    assert nearest.unique().tolist() == [1.0]  # each update is rounded away
    assert 1 - one.mean().item() == pytest.approx(STEPS_APART * RATE, rel=0.1)
    assert len(one.unique()) > 1
    assert torch.equal(one, other)


def report_of(**space: list[Any]) -> PlanningReport:
    """Plans Llama 3 8B on one card of 48 GB, of 47.5 GiB."""
    tree = {
        "model": "llama-3-8b",
        "data": {"lengths": {2048: 1}},
        "cluster": {"device": "cuda", "workers": 1},
        "train": {"global_batch": 8, "sequence_length": 2048},
        "space": {"micro_batch": [1], "checkpoint_ratio": [1.0], "checkpoint_mode": ["full"]}
        | {"loss": ["chunked"], "engine": ["torch"], "compile": [False]}
        | {"offload_optimizer": ["none"]}
        | space,
    }
    spec = SweepSpec.model_validate(tree)
    card = find_device("RTX A6000")
    request = planning_request(spec, describe(spec.model, spec.train), card, ranks=(1,))
    return Planner(
        request, Footprints(spec, request.kind, run_code=True), shipped_calibration()
    ).plan()


@pytest.mark.thorough
def test_eight_billion_parameters_fit_a_card_of_48_gb_in_bf16_with_paged_states() -> None:
    """8.03e9 parameters: 16 bytes each are 120 GiB, 2 + 2 + 2.04 are 45, and without pages 30."""
    peaks = {}
    for name, space in {
        "fp32": {},
        "bf16": {"states": ["bf16"]},
        "8 bit": {"states": ["bf16"], "optimizer": ["adamw_8bit"]},
        "paged": {"states": ["bf16"], "optimizer": ["adamw_8bit_paged"]},
    }.items():
        report = report_of(**space)
        nearest = report.best or report.recommendation.nearest
        assert nearest is not None
        peaks[name] = nearest.forecast.peak_bytes.value / 2**30
        states = sum(dict(nearest.held_bytes)[one] for one in STATE_PARTS)
        each = {"fp32": 16, "bf16": 8, "8 bit": 6.04, "paged": 4}[name]
        assert states == pytest.approx(8_030_261_248 * each), name
        assert (report.best is not None) == (name == "paged"), (name, peaks)
    assert peaks["fp32"] > 120
    assert 30 < peaks["paged"] < 40


@needs_torchao
@pytest.mark.thorough
@pytest.mark.parametrize("knobs", [{}, {"zero_stage": 3}], ids=["ddp", "fsdp2"])
def test_stochastic_rounding_trains_on_ranks(groups: Any, knobs: dict[str, Any]) -> None:
    outcome = groups.of(2).run(a_request(SPEC, **knobs, precision="bf16", states="bf16_stochastic"))

    assert isinstance(outcome, Measured), outcome
    anatomy = outcome.memory.anatomy
    assert anatomy.optimizer_states == pytest.approx(2 * anatomy.weights, rel=0.01)
    assert outcome.losses == pytest.approx(reference_losses(), rel=LOSS_TOLERANCE)
