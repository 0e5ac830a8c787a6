"""Optimizers of a plan: the same update however weights are split, and their states."""

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch

from search_spaces.errors import missing_extra
from search_spaces.knobs.search_defaults import implementations
from search_spaces.specification.sections import TrainSpec
from search_spaces.trial import Measured
from tests.workers.launch import Group
from tests.workers.test_same_training import (
    HYBRID,
    LOSS_TOLERANCE,
    OFFLOAD,
    SPEC,
    WORST_STEP,
    _accumulate,
    reference_losses,
)
from tests.workers.values import STEPS, a_request
from workers.models.load import build_whole
from workers.prepare import prepare

BASE = SPEC.train.model_copy(update={"weight_decay": 0.0, "learning_rate": 1e-4})
MUON_TOLERANCE = 1e-4  # relative
EIGHT_BIT_TOLERANCE = 0.05  # relative; 8-bit states keep 2 digits
needs_8bit = pytest.mark.skipif(
    missing_extra("bitsandbytes") is not None, reason=str(missing_extra("bitsandbytes"))
)


def measured(groups: Any, **knobs: Any) -> Measured:
    group: Group = groups.of(knobs.get("data", 2))
    outcome = group.run(a_request(SPEC, **knobs))
    assert isinstance(outcome, Measured), outcome
    return outcome


@cache
def adafactor_losses() -> list[float]:
    module = build_whole(SPEC.model, SPEC.train, attention="eager").module
    optimizer = torch.optim.Adafactor(module.parameters(), lr=SPEC.train.learning_rate)
    losses = []
    for step in range(WORST_STEP, STEPS):
        losses.append(_accumulate(module, step))
        optimizer.step()
        optimizer.zero_grad()
    return losses[1:]


def test_adafactor_trains_as_in_a_plain_loop_and_keeps_little(groups: Any) -> None:
    outcome = measured(groups, optimizer="adafactor")

    assert outcome.losses == pytest.approx(adafactor_losses(), rel=LOSS_TOLERANCE)
    anatomy = outcome.memory.anatomy
    assert 0 < anatomy.optimizer_states < 0.1 * anatomy.weights  # AdamW: twice the weights


def sgd_in_two_groups(module: torch.nn.Module) -> torch.optim.Optimizer:
    """Returns the user's own: SGD with another rate for vectors."""
    weights = list(module.parameters())
    vectors = {"params": [one for one in weights if one.dim() < 2], "lr": 0.3}
    matrices = {"params": [one for one in weights if one.dim() >= 2]}
    return torch.optim.SGD([matrices, vectors], lr=0.1, momentum=0.5)


def lion_by_definition(module: torch.nn.Module) -> Callable[[], None]:
    """Returns a step of Lion, as its paper states it."""
    kept = {one: torch.zeros_like(one) for one in module.parameters()}

    @torch.no_grad()
    def step() -> None:
        for one, mean in kept.items():
            assert one.grad is not None
            one.sub_(1e-3 * (torch.sign(0.8 * mean + 0.2 * one.grad) + 0.1 * one))
            mean.copy_(0.95 * mean + 0.05 * one.grad)

    return step


def muon_by_hand(module: torch.nn.Module) -> Callable[[], Any]:
    """Returns a step of torch's Muon for weights in layers, and of AdamW for the others."""
    named = [(name, one) for name, one in module.named_parameters()]
    hidden = [one for name, one in named if "layers." in name and one.dim() == 2]
    others = [one for name, one in named if "layers." not in name or one.dim() < 2]
    rate = {"lr": 0.01, "weight_decay": 0.0}
    muon = torch.optim.Muon(hidden, momentum=0.8, adjust_lr_fn="match_rms_adamw", **rate)
    adamw = torch.optim.AdamW(others, **rate)
    return lambda: [one.step() for one in (muon, adamw)]


OWN = f"{__name__}:sgd_in_two_groups"
ADAFACTOR = {"optimizer": "adafactor", "learning_rate": 0.01}
MUON = {"optimizer": "muon", "momentum": 0.8, "learning_rate": 0.01}
LION = {"optimizer": "lion", "betas": (0.8, 0.95), "learning_rate": 1e-3, "weight_decay": 0.1}
SGD = {"optimizer": "sgd", "momentum": 0.9, "learning_rate": 0.1}
# settings, and the step of a plain loop
OPTIMIZERS: dict[str, tuple[dict[str, Any], Callable[[torch.nn.Module], Callable[[], Any]]]] = {
    "sgd": (SGD, lambda one: torch.optim.SGD(one.parameters(), lr=0.1, momentum=0.9).step),
    "plain sgd": (
        SGD | {"momentum": None},
        lambda one: torch.optim.SGD(one.parameters(), 0.1).step,
    ),
    "lion": (LION, lion_by_definition),
    "adafactor": (ADAFACTOR, lambda one: torch.optim.Adafactor(one.parameters(), lr=0.01).step),
    "muon": (MUON, muon_by_hand),
    "custom": ({"optimizer": OWN}, lambda one: sgd_in_two_groups(one).step),
}
WHOLE: tuple[dict[str, Any], ...] = ({"data": 1}, {})
SPLIT: tuple[dict[str, Any], ...] = ({"zero_stage": 3}, {"engine": "deepspeed", "zero_stage": 2})
RUNS = [
    pytest.param(name, knobs, id=f"{name}, {knobs}")
    for name, layouts in {
        **{"sgd": (*WHOLE, *SPLIT), "plain sgd": WHOLE[:1], "lion": (*WHOLE, *SPLIT)},
        **{"adafactor": WHOLE, "muon": WHOLE, "custom": (*WHOLE, SPLIT[0])},
    }.items()
    for knobs in layouts
]


@pytest.mark.cases_by_default(3)
@pytest.mark.parametrize(("name", "knobs"), RUNS)
def test_the_specified_optimizer_trains_as_in_a_plain_loop(
    groups: Any, monkeypatch: pytest.MonkeyPatch, name: str, knobs: dict[str, Any]
) -> None:
    monkeypatch.setenv("PLIMSOLL_TRUST_MODULES", "tests")
    train, step_of = OPTIMIZERS[name]
    spec = SPEC.model_copy(update={"train": TrainSpec.model_validate(BASE.model_dump() | train)})
    module = build_whole(spec.model, spec.train, attention="eager").module
    step, expected = step_of(module), []
    for number in range(WORST_STEP, STEPS):
        expected.append(_accumulate(module, number))
        step()
        module.zero_grad()
    implementation = implementations(spec.train.optimizer)[0]

    group: Group = groups.of(knobs.get("data", 2))
    outcome = group.run(a_request(spec, **knobs, optimizer=implementation))

    assert isinstance(outcome, Measured), outcome
    # Muon orthogonalizes in bf16
    tolerance = MUON_TOLERANCE if name == "muon" else LOSS_TOLERANCE
    assert outcome.losses == pytest.approx(expected[1:], rel=tolerance)
    if name != "adafactor" and not (set(knobs) & {"engine", "zero_stage"}):
        anatomy, forecast = outcome.memory.anatomy, prepare(spec).optimizer
        assert 4 * anatomy.optimizer_states / anatomy.weights == pytest.approx(
            forecast.state_bytes, abs=0.01
        )


@needs_8bit
@pytest.mark.parametrize(
    "knobs",
    [
        {},
        *(
            pytest.param(knobs, marks=pytest.mark.thorough)
            for knobs in ({"zero_stage": 3}, HYBRID, OFFLOAD)
        ),
    ],
    ids=str,
)
def test_8_bit_adamw_trains_nearly_as_adamw_on_whole_weights_and_on_shards(
    groups: Any, knobs: dict[str, Any]
) -> None:
    outcome = measured(groups, optimizer="adamw_8bit", **knobs)

    assert outcome.losses == pytest.approx(reference_losses(), rel=EIGHT_BIT_TOLERANCE)
    assert outcome.losses != pytest.approx(reference_losses(), rel=LOSS_TOLERANCE)
    anatomy = outcome.memory.anatomy
    # two bytes a weight of 4; small ones and small shards (below 4096 numbers) keep 32 bits
    assert 0.5 < anatomy.optimizer_states / anatomy.weights < (1.9 if knobs else 0.8)
