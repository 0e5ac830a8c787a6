"""Blocks split over tensor ranks by DeepSpeed's AutoTP give the losses of the whole model."""

from pathlib import Path
from typing import Any

import pytest
import torch

from search_spaces.specification.schema import SweepSpec
from search_spaces.trial import Measured, TrialRequest
from tests.workers.launch import Group
from tests.workers.one_step import built, sgd
from tests.workers.parallel.split_models import split_spec
from tests.workers.test_same_training import LOSS_TOLERANCE, SPEC, reference_losses
from tests.workers.values import a_request, a_spec
from workers.models.load import build
from workers.models.tensor_plan import autotp_refusal
from workers.worker import Worker

pytestmark = pytest.mark.thorough

STEPS = 8
# a weight that the gradient's length leaves out on one rank shows from 1e-5 on
SGD_TOLERANCE = 2e-6  # relative
RATE = 2.0  # of steps whose gradient is clipped to
CLIPPED = 0.05  # this length
TWO = {"engine": "deepspeed", "tensor": 2, "data": 1, "micro_batch": 4}
FOUR = {"engine": "deepspeed", "tensor": 2, "data": 2, "micro_batch": 2}
UNTIED, TIED = {"tie_word_embeddings": False}, {"tie_word_embeddings": True}
ODD_VOCABULARY = {"vocab_size": 501}
ARCHITECTURES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("llama", {}),
    ("llama", UNTIED | ODD_VOCABULARY),
    ("qwen2", TIED),
    ("qwen2", UNTIED),
    ("qwen3", TIED),
    ("qwen3", UNTIED),
    ("opt", {}),
    ("opt", UNTIED),
    ("bert", {}),
    ("roberta", {}),
    ("gpt_neox", {}),
    ("gpt_neox", TIED),
)


def steps(worker: Worker, request: TrialRequest) -> tuple[list[float], dict[str, Any]]:
    """Runs clipped SGD; returns this rank's parts of the losses, and its unsplit weights."""
    ours = built(worker, request, sgd(RATE))
    losses = [ours.step(number).item() for number in range(STEPS)]
    spec = request.spec
    unsplit = dict(build(spec.model, spec.train, attention="sdpa").module.named_parameters())
    whole = {
        name: weight.detach().numpy().copy()
        for name, weight in ours.module.named_parameters()
        if weight.shape == unsplit[name].shape
    }
    ours.training.close()
    return losses, whole


@pytest.mark.parametrize(("architecture", "config"), ARCHITECTURES, ids=str)
def test_clipped_steps_are_those_of_the_whole_model(
    alone: Group, pair: Group, tmp_path: Path, architecture: str, config: dict[str, Any]
) -> None:
    plain = split_spec(architecture, tmp_path, **config)
    train = plain.train.model_copy(update={"grad_clip": CLIPPED})
    spec = plain.model_copy(update={"train": train})
    one_rank = {"engine": "deepspeed", "data": 1, "micro_batch": 4}
    ((expected, weights),) = alone.call(steps, a_request(spec, **one_rank))

    (first, kept), (other, others_kept) = pair.call(steps, a_request(spec, **TWO))

    assert first == pytest.approx(expected, rel=SGD_TOLERANCE)
    assert other == [0.0] * STEPS  # it saw the same samples, which count once
    assert 0 < len(kept) < len(weights)
    assert kept.keys() == others_kept.keys()
    assert all((weight == others_kept[name]).all() for name, weight in kept.items())


@pytest.mark.parametrize(
    "knobs",
    [
        {"batching": "packed", "attention": "eager"},
        {"batching": "grouped", "checkpoint_ratio": 1.0},
    ],
    ids=["packed", "recomputed"],
)
def test_the_losses_are_those_of_the_plain_loop(pair: Group, knobs: dict[str, Any]) -> None:
    outcome = pair.run(a_request(SPEC, **TWO, **knobs))

    assert isinstance(outcome, Measured), outcome
    assert outcome.losses == pytest.approx(reference_losses(), rel=LOSS_TOLERANCE)


@pytest.mark.parametrize("zero_stage", [0, 1, 2, 3])
def test_losses_beside_data_ranks_with_clipped_gradients(
    alone: Group, four: Group, zero_stage: int
) -> None:
    spec = a_spec(train={"grad_clip": 0.5})  # less than the gradients' length
    expected = alone.run(a_request(spec, data=1, micro_batch=4)).losses

    outcome = four.run(a_request(spec, **FOUR, zero_stage=zero_stage))

    assert isinstance(outcome, Measured), outcome
    assert outcome.losses == pytest.approx(expected, rel=LOSS_TOLERANCE)


def _refusal(spec: SweepSpec) -> str | None:
    return autotp_refusal(build(spec.model, spec.train, attention="sdpa").module)


def test_what_is_shown_here_is_allowed_and_nothing_else(tmp_path: Path) -> None:
    for architecture, config in ARCHITECTURES:
        assert _refusal(split_spec(architecture, tmp_path, **config)) is None, architecture
    assert "lists GPT-2" in str(_refusal(split_spec("gpt2", tmp_path)))
    assert "position biases" in str(_refusal(split_spec("t5", tmp_path)))
    assert autotp_refusal(torch.nn.Linear(2, 2)) == (
        "Linear was not shown to train correctly under DeepSpeed's AutoTP"
    )
