"""Blocks split over tensor ranks give the losses and gradients of the whole model.

The reference is the unmodified module of transformers, in this process, on all samples at once.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from search_spaces.spec.schema import SweepSpec
from search_spaces.trial import Crashed, Measured, OutOfMemory, TrialRequest
from tests.workers.launch import CALL_SECONDS, Group
from tests.workers.parallel.split_models import ARCHITECTURES, split_spec
from tests.workers.parity.ranks import whole_weights
from tests.workers.values import GLOBAL_BATCH, STEPS, a_plan, a_request, a_spec, odd_model
from workers.data.batches import batch_source
from workers.engines.build import build_training
from workers.engines.stopwatch import stopwatch_for
from workers.engines.torch import TorchTraining
from workers.models.load import build, build_whole
from workers.models.tensor_plan import tensor_facts, tensor_plan
from workers.prepare import prepare
from workers.worker import Worker

# fp32 keeps 7 digits; sums run in another order, and AdamW carries it on through 7 updates
LOSS_TOLERANCE = 2e-5  # relative
GRADIENT_TOLERANCE = 2e-5  # of the largest gradient
FP32_BYTES = 4
IN_SEQUENCE = tuple(name for name in ARCHITECTURES if name != "t5")
TWO = {"tensor": 2, "data": 1, "micro_batch": 4}
FOUR = {"tensor": 2, "data": 2, "micro_batch": 2}
ODD_PLAN = {"layers.0": "colwise", "layers.1": "rowwise"}


def whole_gradients(spec: SweepSpec) -> dict[str, torch.Tensor]:
    """Gradients of the mean loss over the first global batch, in one forward pass."""
    model = build_whole(spec.model, spec.train, attention="sdpa")
    plan = a_plan(data=1, micro_batch=GLOBAL_BATCH)
    (batch,) = batch_source(model, spec).step(plan, 0, 0).batches
    model.module(**batch.inputs).loss.backward()
    return {
        name: weight.grad
        for name, weight in model.module.named_parameters()
        if weight.grad is not None
    }


def moved(worker: Worker, request: TrialRequest) -> dict[str, Any]:
    """Change of each weight by one step of SGD; slices and shards are gathered."""
    spec, plan = request.spec, request.plan
    mesh = worker.group.acquire(30.0, plan)
    assert mesh is not None
    model = build(spec.model, spec.train, attention=plan.attention)
    source = batch_source(model, spec)
    training = build_training(request, model, prepare(spec), mesh, worker.device)
    assert isinstance(training, TorchTraining)
    module = training.module
    before = _whole_weights(module)
    given = source.step(plan, mesh.place.data, 0)
    sgd = torch.optim.SGD(module.parameters(), lr=1.0, foreach=False)
    update = dataclasses.replace(training.update, optimizer=sgd)
    by_gradient = dataclasses.replace(training, update=update)
    by_gradient.step(given.batches, given.targets, stopwatch_for(worker.device))
    after = _whole_weights(module)
    return {name: (before[name] - weight).numpy() for name, weight in after.items()}


def _whole_weights(module: nn.Module) -> dict[str, torch.Tensor]:
    return {
        name.removeprefix("module.").replace("_checkpoint_wrapped_module.", ""): weight
        for name, weight in whole_weights(module).items()
    }


def assert_moved_by_gradient(group: Group, spec: SweepSpec, **knobs: Any) -> None:
    expected = whole_gradients(spec)
    largest = max(gradient.abs().max().item() for gradient in expected.values())
    request = a_request(spec, **knobs)
    for ranks in group.call(moved, request):
        assert ranks.keys() >= expected.keys()
        for name, gradient in expected.items():
            worst = (torch.from_numpy(ranks[name]) - gradient).abs().max().item()
            assert worst < GRADIENT_TOLERANCE * largest, name


@pytest.mark.cases_by_default(4)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_step_moves_the_weights_by_the_gradient_of_the_whole_model(
    pair: Group, tmp_path: Path, architecture: str
) -> None:
    assert_moved_by_gradient(pair, split_spec(architecture, tmp_path), **TWO)


@pytest.mark.cases_by_default(3)
@pytest.mark.parametrize("architecture", IN_SEQUENCE)
def test_so_it_does_with_the_sequence_split(pair: Group, tmp_path: Path, architecture: str) -> None:
    spec = split_spec(architecture, tmp_path)

    assert_moved_by_gradient(
        pair, spec, **TWO, sequence_parallel=True, checkpoint_ratio=0.5, attention="eager"
    )


@pytest.mark.thorough
@pytest.mark.parametrize("sequence", [False, True], ids=["whole rows", "sequence split"])
@pytest.mark.parametrize("zero_stage", [0, 2, 3])
@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_so_it_does_beside_data_ranks(
    four: Group, tmp_path: Path, architecture: str, zero_stage: int, sequence: bool
) -> None:
    spec = split_spec(architecture, tmp_path)

    assert_moved_by_gradient(
        four, spec, **FOUR, zero_stage=zero_stage, sequence_parallel=sequence, batching="grouped"
    )


def losses(group: Group, spec: SweepSpec, **knobs: Any) -> tuple[float, ...]:
    outcome = group.run(a_request(spec, **knobs))
    assert isinstance(outcome, Measured), outcome
    assert len(outcome.losses) == STEPS
    return outcome.losses


# a bias of keys has no gradient but rounding, of which AdamW makes whole steps
@pytest.mark.cases_by_default(2)
@pytest.mark.parametrize(
    ("architecture", "config"),
    [
        ("llama", {}),
        ("gpt2", {}),
        ("bert", {}),
        ("t5", {}),
        pytest.param("qwen3", {}, marks=pytest.mark.thorough),
        pytest.param("opt", {"enable_bias": False}, marks=pytest.mark.thorough),
    ],
)
def test_losses_are_those_of_the_whole_model(
    alone: Group, pair: Group, tmp_path: Path, architecture: str, config: dict[str, Any]
) -> None:
    spec = split_spec(architecture, tmp_path, **config)
    expected = losses(alone, spec, data=1, micro_batch=4)

    assert losses(pair, spec, **TWO) == pytest.approx(expected, rel=LOSS_TOLERANCE)


@pytest.mark.cases_by_default(1)
@pytest.mark.parametrize(
    "knobs",
    [
        {"batching": "packed", "attention": "eager"},
        {"checkpoint_ratio": 1.0, "checkpoint_mode": "selective"},
        {"optimizer": "adamw_foreach", "batching": "grouped"},
    ],
    ids=["packed", "selective", "foreach"],
)
def test_losses_with_the_sequence_split(alone: Group, pair: Group, knobs: dict[str, Any]) -> None:
    expected = losses(alone, a_spec(), data=1, micro_batch=4)

    found = losses(pair, a_spec(), **TWO, sequence_parallel=True, **knobs)

    assert found == pytest.approx(expected, rel=LOSS_TOLERANCE)


@pytest.mark.parametrize(
    "zero_stage", [*(pytest.param(stage, marks=pytest.mark.thorough) for stage in (0, 2)), 3]
)
def test_losses_beside_data_ranks_with_clipped_gradients(
    alone: Group, four: Group, zero_stage: int
) -> None:
    spec = a_spec(train={"grad_clip": 0.5})  # less than the gradients' length
    expected = losses(alone, spec, data=1, micro_batch=4)

    found = losses(four, spec, **FOUR, zero_stage=zero_stage)

    assert found == pytest.approx(expected, rel=LOSS_TOLERANCE)


@pytest.mark.cases_by_default(1)
@pytest.mark.parametrize("zero_stage", [0, 2])
def test_a_rank_holds_its_slices_and_no_more(four: Group, zero_stage: int) -> None:
    spec = a_spec()
    module = build_whole(spec.model, spec.train, attention="sdpa").module
    plan = tensor_plan(module)
    split = {
        id(weight): weight.numel()
        for name, _ in (*plan.splits, *plan.vocabulary)
        for weight in module.get_submodule(name).parameters()
    }
    total = sum(weight.numel() for weight in module.parameters())
    each = total - sum(split.values()) / 2  # half of what is split, all of the norms
    expected = FP32_BYTES * each / (2 if zero_stage else 1)

    outcome = four.run(a_request(spec, **FOUR, zero_stage=zero_stage))

    assert isinstance(outcome, Measured)
    assert sum(split.values()) > 0.99 * total
    assert outcome.memory.anatomy.weights == expected
    assert outcome.memory.anatomy.optimizer_states == pytest.approx(2 * expected, rel=0.01)


def test_a_function_of_the_user_is_split_by_the_plan_in_its_spec(alone: Group, pair: Group) -> None:
    spec = a_spec(model=odd_model("none") | {"tensor_plan": ODD_PLAN})
    expected = losses(alone, spec, data=1, micro_batch=4)

    assert prepare(spec).tensor.refusal is None
    assert losses(pair, spec, **TWO) == pytest.approx(expected, rel=LOSS_TOLERANCE)


def test_rows_that_cannot_be_split_evenly_are_a_crash_and_no_abort(pair: Group) -> None:
    """Rows of a function are as long as its batch maker makes them."""
    spec = a_spec(model={"name": "tests.workers.odd_models:make_answering"})

    outcome = pair.run(a_request(spec, **TWO, sequence_parallel=True))

    assert isinstance(outcome, Crashed)
    assert "splits rows over 2 tensor ranks" in outcome.detail
    pair.assert_trains(**TWO)


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_when_one_rank_runs_out_its_tensor_peer_learns_it_at_once(pair: Group, where: str) -> None:
    model = odd_model("allocates", where=where, rank=1, call=3) | {"tensor_plan": ODD_PLAN}

    outcomes = pair.run_on_all(
        a_request(a_spec(model=model), **TWO, collective_seconds=10 * CALL_SECONDS)
    )

    first, other = outcomes
    assert first == other
    assert isinstance(first, OutOfMemory)
    assert (first.rank, first.phase) == (1, where)
    pair.assert_trains(**TWO)


def test_a_large_model_that_is_split_runs_out_and_the_group_goes_on(pair: Group) -> None:
    spec = a_spec(data={"lengths": {256: 1}}, train={"global_batch": 256, "sequence_length": 256})
    knobs = {"tensor": 2, "data": 1, "sequence_parallel": True}

    failed = pair.run(a_request(spec, **knobs, micro_batch=256, accumulation=1))

    assert isinstance(failed, OutOfMemory)
    pair.assert_trains(**TWO)


def test_facts_of_what_is_tested_here_refuse_nothing(tmp_path: Path) -> None:
    for architecture in ARCHITECTURES:
        spec = split_spec(architecture, tmp_path)
        facts = tensor_facts(build(spec.model, spec.train, attention="sdpa").module)
        assert facts.refusal is None, architecture
        assert (facts.sequence_refusal is None) == (architecture in IN_SEQUENCE), architecture
