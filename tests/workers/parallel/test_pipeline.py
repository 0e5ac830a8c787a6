"""Pipelines train as one process does: losses, gradients, tied weights, memory, failures.

Ranks are real processes. The reference is a single rank with the whole model, which
`test_same_training` compares to a plain loop.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.tensor import DTensor

from search_spaces.plan import Plan, Schedule
from search_spaces.settings.schedules import SCHEDULES
from search_spaces.spec.schema import SweepSpec
from search_spaces.trial import Measured, OutOfMemory, TrialRequest, ValidationRun
from tests.workers.launch import Group
from tests.workers.tracing.experts import MIXTRAL
from tests.workers.values import LLAMA, a_plan, a_request, a_spec
from workers.data.batches import batch_source
from workers.engines.build import build_training
from workers.engines.pipeline import PipelineTraining
from workers.engines.stopwatch import stopwatch_for
from workers.engines.torch import TorchTraining
from workers.models.deferred_init import original_name
from workers.models.load import build
from workers.prepare import prepare
from workers.worker import Worker

# as in test_same_training: fp32 keeps 7 digits, sums run in another order
LOSS_TOLERANCE = 2e-5  # relative
GRADIENT_TOLERANCE = 2e-5  # of the largest gradient
NO_DROPOUT = {
    "bert-large": {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
    "gpt2": {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
}
SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "vocab_size": 512,
    "initializer_range": 0.2,
}


def llama(blocks: int) -> dict[str, Any]:
    """A model whose head is tied to its embedding."""
    return LLAMA | {"config": LLAMA["config"] | {"num_hidden_layers": blocks}}


def small(name: str, task: str, **config: Any) -> dict[str, Any]:
    return {"name": name, "task": task, "config": SMALL | NO_DROPOUT[name] | config}


MODELS = {
    "llama": llama(5),  # so that stages are of unequal depth
    "gpt2": small("gpt2", "causal-lm"),
    "deep": small("gpt2", "causal-lm", num_hidden_layers=4),
    "bert": small("bert-large", "masked-lm"),
    "gpt2-classes": small("gpt2", "sequence-classification"),
    "experts": MIXTRAL
    | {"config": MIXTRAL["config"] | {"vocab_size": 512, "num_hidden_layers": 4}},
    "function": {"name": "tests.workers.parallel.stacked_model:make"},
}
TIED = {"lm_head.weight": "transformer.wte.weight"}  # of GPT-2
TOP = ("transformer", "lm_head")
_losses: dict[str, tuple[float, ...]] = {}


def losses_of_one(alone: Group, name: str) -> tuple[float, ...]:
    """Outcome of one rank with the whole model."""
    if name not in _losses:
        plan = a_plan(data=1, micro_batch=4)
        outcome = alone.run(TrialRequest(number=0, plan=plan, spec=a_spec(model=MODELS[name])))
        assert isinstance(outcome, Measured)
        _losses[name] = outcome.losses
    return _losses[name]


def assert_same_losses(group: Group, alone: Group, name: str, plan: Plan) -> None:
    outcome = group.run(TrialRequest(number=0, plan=plan, spec=a_spec(model=MODELS[name])))

    assert isinstance(outcome, Measured), getattr(outcome, "trace", outcome)
    assert outcome.losses == pytest.approx(losses_of_one(alone, name), rel=LOSS_TOLERANCE)


@pytest.mark.parametrize(
    ("name", "knobs"),
    [
        pytest.param("llama", {"sequence_parallel": True}, marks=pytest.mark.thorough),
        ("gpt2", {}),
        pytest.param(
            "llama",
            {"sequence_parallel": True, "pipeline_schedule": "zbv"},
            marks=pytest.mark.thorough,
        ),
        pytest.param("deep", {"pipeline_schedule": "zbv"}, marks=pytest.mark.thorough),
    ],
    ids=["llama-sequence", "gpt2", "llama-sequence-zbv", "gpt2-zbv"],
)
def test_tensor_ranks_split_stages_too(
    four: Group, alone: Group, name: str, knobs: dict[str, Any]
) -> None:
    plan = a_plan(**{"tensor": 2, "pipeline": 2, "data": 1, "micro_batch": 1} | knobs)

    assert_same_losses(four, alone, name, plan)


def two_stages(**knobs: Any) -> Plan:
    return a_plan(**{"data": 1, "pipeline": 2} | knobs)


@pytest.mark.cases_by_default(4)
@pytest.mark.parametrize(
    ("name", "plan"),
    [
        ("llama", two_stages(pipeline_schedule="gpipe", micro_batch=8)),
        ("llama", two_stages(pipeline_schedule="1f1b", batching="packed")),
        ("llama", two_stages(pipeline_schedule="interleaved", checkpoint_ratio=0.5)),
        ("gpt2", two_stages(batching="grouped", checkpoint_ratio=1.0)),
        ("bert", two_stages()),
        pytest.param("gpt2-classes", two_stages(micro_batch=1), marks=pytest.mark.thorough),
        ("experts", two_stages(pipeline_schedule="1f1b", checkpoint_ratio=0.5)),
        ("function", two_stages(pipeline_schedule="interleaved")),
        ("llama", two_stages(pipeline_schedule="zbv", batching="packed")),
        ("deep", two_stages(pipeline_schedule="dualpipev")),
        ("function", two_stages(pipeline_schedule="interleaved_zero_bubble")),
        pytest.param("experts", two_stages(pipeline_schedule="zbv"), marks=pytest.mark.thorough),
        pytest.param(
            "llama", two_stages(pipeline_schedule="dualpipev"), marks=pytest.mark.thorough
        ),
        pytest.param(
            "experts",
            two_stages(pipeline_schedule="interleaved_zero_bubble"),
            marks=pytest.mark.thorough,
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else value.pipeline_schedule,
)
def test_two_stages_train_as_one_process_does(
    pair: Group, alone: Group, name: str, plan: Plan
) -> None:
    assert_same_losses(pair, alone, name, plan)


@pytest.mark.parametrize(
    ("zero_stage", "schedule"),
    [
        pytest.param(0, "1f1b", marks=pytest.mark.thorough),
        pytest.param(2, "interleaved", marks=pytest.mark.thorough),
        (3, "1f1b"),
        pytest.param(0, "dualpipev", marks=pytest.mark.thorough),
    ],
)
def test_stages_of_two_data_ranks_train_as_one_process_does(
    four: Group, alone: Group, zero_stage: int, schedule: Schedule
) -> None:
    plan = a_plan(
        pipeline=2,
        pipeline_schedule=schedule,
        zero_stage=zero_stage,
        micro_batch=1,
        checkpoint_ratio=0.0 if SCHEDULES[schedule].splits_backward else 0.5,
    )

    assert_same_losses(four, alone, "llama", plan)


# AdamW divides the gradient by its own size, so that losses alone cannot tell a gradient from
# its half. Plain SGD with a rate of 1 moves the weights by the gradient itself.


def _moved(worker: Worker, plan: Plan, spec: SweepSpec) -> dict[str, Any]:
    """Change of each weight by one step of SGD on this rank; sharded weights are gathered."""
    mesh = worker.group.acquire(30.0, plan)
    model = build(spec.model, spec.train, attention="eager")
    source = batch_source(model, spec)
    request = TrialRequest(number=0, plan=plan, spec=spec)
    training = build_training(request, model, prepare(spec), mesh, worker.device)
    assert isinstance(training, PipelineTraining | TorchTraining)
    weights = list(training.module.named_parameters())
    before = [_whole(weight) for _, weight in weights]
    sgd = torch.optim.SGD(training.module.parameters(), lr=1.0)
    by_gradient = dataclasses.replace(
        training, update=dataclasses.replace(training.update, optimizer=sgd)
    )
    given = source.step(plan, mesh.place.data if mesh else 0, 0)
    by_gradient.step(given.batches, given.targets, stopwatch_for(worker.device))
    return {
        _in_the_model(name): (old - _whole(weight)).numpy()
        for (name, weight), old in zip(weights, before, strict=True)
    }


def _in_the_model(name: str) -> str:
    """Name of a weight without its stage and wrappers."""
    wrapped = original_name(name).split(".")
    return ".".join(wrapped[next(i for i, part in enumerate(wrapped) if part in TOP) :])


def _whole(weight: torch.Tensor) -> torch.Tensor:
    full = weight.full_tensor() if isinstance(weight, DTensor) else weight
    return full.detach().clone()


@pytest.mark.cases_by_default(2)
@pytest.mark.parametrize(
    ("zero_stage", "schedule"),
    [(0, "1f1b"), (2, "1f1b"), (0, "interleaved_zero_bubble"), (0, "zbv")],
)
def test_a_step_moves_all_weights_by_the_gradient_of_the_mean_loss(
    four: Group, alone: Group, zero_stage: int, schedule: Schedule
) -> None:
    spec = a_spec(model=MODELS["deep"])
    plan = a_plan(
        pipeline=2, pipeline_schedule=schedule, zero_stage=zero_stage, micro_batch=1, bucket_mib=1
    )
    (expected,) = alone.call(_moved, a_plan(data=1), spec)
    largest = max(abs(moved).max() for moved in expected.values())

    ranks: list[dict[str, Any]] = four.call(_moved, plan, spec)

    # a rank that has both ends has their tied weight once
    apart = set() if SCHEDULES[schedule].is_v_shaped else set(TIED)
    assert set(expected) | apart == {name for moved in ranks for name in moved}
    for moved in ranks:
        for name, by in moved.items():
            assert abs(by - expected[TIED.get(name, name)]).max() < GRADIENT_TOLERANCE * largest


def test_a_tied_weight_counts_once_in_the_norm_that_is_clipped(pair: Group, alone: Group) -> None:
    small = {"global_batch": 8, "sequence_length": 64, "precision": "fp32", "grad_clip": 0.05}
    spec = a_spec(model=MODELS["gpt2"], train=small)
    (expected,) = alone.call(_moved, a_plan(data=1), spec)
    largest = max(abs(moved).max() for moved in expected.values())

    for moved in pair.call(_moved, two_stages(), spec):
        for name, by in moved.items():
            assert abs(by - expected[TIED.get(name, name)]).max() < GRADIENT_TOLERANCE * largest


@pytest.mark.thorough
@pytest.mark.parametrize("schedule", ["1f1b", "zbv"])
def test_adapters_are_trained_in_stages(pair: Group, alone: Group, schedule: Schedule) -> None:
    spec = a_spec(model=MODELS["deep"], train={"method": "lora"})
    whole = alone.run(TrialRequest(number=0, plan=a_plan(data=1, micro_batch=4), spec=spec))

    plan = two_stages(pipeline_schedule=schedule)
    cut = pair.run(TrialRequest(number=0, plan=plan, spec=spec))

    assert isinstance(whole, Measured)
    assert isinstance(cut, Measured), getattr(cut, "trace", cut)
    assert cut.losses == pytest.approx(whole.losses, rel=LOSS_TOLERANCE)


def test_a_rank_holds_its_own_stages_alone(pair: Group) -> None:
    ranks = pair.call(_weight_bytes, two_stages(), a_spec(model=MODELS["gpt2"]))

    block, embedding, positions, norm = 12_704, 512 * 32, 1024 * 32, 64  # as GPT-2 is built
    assert ranks == [4 * (embedding + positions + block), 4 * (2 * block + norm + embedding)]

    both_ends = two_stages(pipeline_schedule="zbv")  # with the tied weight once
    ranks = pair.call(_weight_bytes, both_ends, a_spec(model=MODELS["deep"]))
    assert ranks == [4 * (embedding + positions + 2 * block + norm), 4 * 2 * block]


def _weight_bytes(worker: Worker, plan: Plan, spec: SweepSpec) -> int:
    model = build(spec.model, spec.train, attention="eager")
    mesh = worker.group.acquire(30.0, plan)
    request = TrialRequest(number=0, plan=plan, spec=spec)
    training = build_training(request, model, prepare(spec), mesh, worker.device)
    return training.state_bytes().weights


@pytest.mark.thorough
def test_where_both_ends_are_it_evaluates_alike_and_saves_a_tied_weight_once(
    pair: Group, tmp_path: Path
) -> None:
    def validated(schedule: Schedule) -> ValidationRun:
        folder = str(tmp_path / schedule)
        spec = a_spec(model=MODELS["deep"], validation={"folder": folder})
        plan = two_stages(pipeline_schedule=schedule)
        outcome = pair.run(TrialRequest(number=0, plan=plan, spec=spec, validation=True))
        assert isinstance(outcome, Measured), getattr(outcome, "trace", outcome)
        assert outcome.validation is not None
        return outcome.validation

    adam, embedding = 3 * 4, 512 * 32  # bytes of a weight and its two moments; weights
    apart, both_ends = validated("1f1b"), validated("dualpipev")
    assert both_ends.evaluation_loss == pytest.approx(apart.evaluation_loss, rel=LOSS_TOLERANCE)
    saved_less = apart.checkpoint_bytes - both_ends.checkpoint_bytes
    assert saved_less == pytest.approx(adam * embedding, rel=0.05)


@pytest.mark.parametrize(("rank", "schedule"), [(0, "1f1b"), (1, "interleaved"), (1, "zbv")])
def test_when_a_stage_runs_out_of_memory_the_others_learn_it_at_once(
    pair: Group, rank: int, schedule: str
) -> None:
    sound = a_spec(model=MODELS["function"])
    faulty = a_spec(model=MODELS["function"] | {"config": {"rank": rank, "call": 3}})
    plan = {"data": 1, "pipeline": 2, "pipeline_schedule": schedule}

    outcomes = pair.run_on_all(a_request(faulty, collective_seconds=30.0, **plan))

    first, other = outcomes
    assert first == other
    assert isinstance(first, OutOfMemory), getattr(first, "trace", first)
    assert (first.rank, first.phase) == (rank, "backward")
    assert first.wanted_bytes is not None
    assert first.wanted_bytes >= 2**30
    assert isinstance(pair.run(a_request(sound, **plan)), Measured)


@pytest.mark.thorough  # eight ranks, on as many cores as there are
def test_tensor_pipeline_and_data_ranks_together_train_as_one_process_does(
    eight: Group, alone: Group
) -> None:
    plan = a_plan(tensor=2, pipeline=2, data=2, zero_stage=2, micro_batch=1)

    assert_same_losses(eight, alone, "llama", plan)
