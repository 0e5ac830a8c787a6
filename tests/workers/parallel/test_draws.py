"""Dropout masks follow `train.seed` and a rank's place; a recomputed block draws what it drew."""

from typing import Any

import pytest
import torch
from torch import nn

from search_spaces.plan import Plan
from search_spaces.specification.schema import SweepSpec
from search_spaces.trial import Measured, TrialRequest
from tests.workers.launch import Group, Groups
from tests.workers.one_step import built
from tests.workers.values import STEPS, a_plan, a_spec
from workers.engines.stopwatch import Stopwatch
from workers.memory.device_runtime import runtime_for
from workers.worker import Worker

MORE = pytest.mark.thorough
SAME = 2e-5
GPT2 = {
    "name": "gpt2",
    "config": {
        "n_embd": 64,
        "n_layer": 2,
        "n_head": 4,
        "vocab_size": 500,
        "resid_pdrop": 0.1,
        "embd_pdrop": 0.1,
        "attn_pdrop": 0.1,
    },
}
TENSOR: dict[str, Any] = {"tensor": 2, "data": 1, "attention": "eager"}
TOKENS: dict[str, Any] = TENSOR | {"sequence_parallel": True}


def spec_with(seed: int = 0) -> SweepSpec:
    return a_spec(model=GPT2, train={"seed": seed})


def losses_of(group: Group, seed: int = 0, **knobs: Any) -> tuple[float, ...]:
    request = TrialRequest(number=0, plan=a_plan(**knobs), spec=spec_with(seed))
    outcome = group.run(request)
    assert isinstance(outcome, Measured), outcome
    assert len(outcome.losses) == STEPS
    return outcome.losses


@pytest.mark.parametrize(
    ("ranks", "knobs"),
    [
        pytest.param(1, {"data": 1}, id="one rank"),
        pytest.param(2, {}, id="ddp", marks=MORE),
        pytest.param(2, TOKENS, id="sequence", marks=MORE),
        pytest.param(2, {"zero_stage": 3, "checkpoint_ratio": 1.0}, id="fsdp2", marks=MORE),
        pytest.param(2, {"pipeline": 2, "data": 1}, id="pipeline", marks=MORE),
        pytest.param(2, {"engine": "deepspeed", "zero_stage": 2}, id="zero 2", marks=MORE),
    ],
)
def test_the_same_trial_twice_draws_the_same(
    groups: Groups, ranks: int, knobs: dict[str, Any]
) -> None:
    group = groups.of(ranks)
    first = losses_of(group, **knobs)
    losses_of(group, seed=1, **knobs)  # another trial in between

    assert losses_of(group, **knobs) == pytest.approx(first, rel=SAME)


@MORE
def test_plans_that_lay_samples_out_alike_draw_alike(pair: Group) -> None:
    ddp = losses_of(pair)

    for knobs in ({"zero_stage": 3}, {"checkpoint_ratio": 1.0}):
        assert losses_of(pair, **knobs) == pytest.approx(ddp, rel=SAME)


@MORE
@pytest.mark.parametrize("mode", ["full", "selective"])
def test_recomputed_blocks_of_a_split_sequence_draw_what_they_drew(pair: Group, mode: str) -> None:
    kept = losses_of(pair, **TOKENS)
    recomputed = losses_of(pair, **TOKENS, checkpoint_ratio=1.0, checkpoint_mode=mode)

    assert recomputed == pytest.approx(kept, rel=SAME)


def _masks(worker: Worker, plan: Plan, seed: int) -> dict[str, list[torch.Tensor]]:
    """Returns what each dropout of the model left out in two steps on this rank."""
    ours = built(worker, TrialRequest(number=0, plan=plan, spec=spec_with(seed)))
    masks: dict[str, list[torch.Tensor]] = {}

    def record(name: str) -> Any:
        def hook(_: nn.Module, args: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
            masks.setdefault(name, []).append((output == 0) & (args[0] != 0))

        return hook

    for name, part in ours.module.named_modules():
        if isinstance(part, nn.Dropout):
            part.register_forward_hook(record(name.removeprefix("module.")))
    given = ours.source.step(plan, 0, 0)  # the same samples on all data ranks and in both steps
    for _ in range(2):
        ours.training.step(given.batches, given.targets, Stopwatch(runtime_for(worker.device)))
    ours.training.close()
    return masks


def alike(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return all(map(torch.equal, one, other))


@pytest.mark.cases_by_default(1)
@pytest.mark.parametrize(
    ("knobs", "inside", "outside"),
    [
        pytest.param({}, False, False, id="data ranks"),
        pytest.param(TENSOR, True, True, id="tensor ranks"),
        pytest.param(TOKENS, False, True, id="tensor ranks with their own tokens"),
    ],
)
def test_ranks_draw_alike_where_they_hold_the_same_tokens(
    pair: Group, knobs: dict[str, Any], inside: bool, outside: bool
) -> None:
    plan = a_plan(**knobs)
    first, second = pair.call(_masks, plan, 0)
    names = {True: "transformer.drop", False: "transformer.h.1.mlp.dropout"}
    pairs = {
        is_outside: [masks[name] for masks in (first, second)] for is_outside, name in names.items()
    }

    assert alike(*pairs[False]) is inside
    assert alike(*pairs[True]) is outside
    for masks in (*pairs[False], *pairs[True]):
        share = torch.cat([mask.flatten() for mask in masks]).float().mean()
        assert 0.08 < float(share) < 0.12
        half = len(masks) // 2
        assert not alike(masks[:half], masks[half:])  # each step draws anew
    again, _ = pair.call(_masks, plan, 0)
    other, _ = pair.call(_masks, plan, 1)
    assert alike(again[names[False]], first[names[False]])
    assert not alike(other[names[False]], first[names[False]])
