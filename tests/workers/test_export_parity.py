"""Exported scripts take the steps that were measured: gradients of a plain loop, clipped.

Each task and format is compared by steps of SGD; AdamW would hide a gradient that is too long by
a factor, as the steps of a Trainer whose model ignores its count of labels.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from search_spaces.plan import Plan
from search_spaces.spec.schema import SweepSpec
from tests.orchestrator.export.folders import taken_of
from tests.workers.parity.architectures import clipped, function_spec, model_folder, spec_of
from tests.workers.parity.comparison import TOLERANCES
from tests.workers.parity.exported import FirstSteps, first_steps
from tests.workers.parity.plain_loop import FIRST_STEPS, Reference, reference
from tests.workers.values import a_plan

TOLERANCE = TOLERANCES["change"]
DEEPSPEED = {"engine": "deepspeed"}


def thorough(*values: object) -> Any:
    return pytest.param(*values, marks=pytest.mark.thorough)


def model_spec(task: str, model: str, folder: Path) -> SweepSpec:
    return spec_of(task, model_folder(model, folder))


def stepped(
    spec: SweepSpec,
    plan: Plan,
    form: str,
    folder: Path,
    steps: tuple[int, int] = FIRST_STEPS,
    **run: bool,
) -> tuple[Reference, FirstSteps]:
    """Returns two steps of the plain loop, and those of the exported script."""
    expected = reference(spec, steps, in_fp16=plan.precision == "fp16")
    source = taken_of(plan, spec=clipped(spec, expected.clip))
    return expected, first_steps(source, form, expected.rate, folder / "out", **run)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "model", "form", "knobs"),
    [
        # its loss ignores the number of labels that Trainer counts
        thorough("seq2seq", "t5", "hf-trainer", {}),
        thorough("masked-lm", "bert", "hf-trainer", {"data": 1, "batching": "grouped"}),
        thorough("sequence-classification", "gpt2", "hf-trainer", {}),
        thorough("causal-lm", "llama", "hf-trainer", {**DEEPSPEED, "zero_stage": 3}),
        thorough("masked-lm", "bert", "torchrun", {"zero_stage": 2}),
        thorough("seq2seq", "t5", "torchrun", {"zero_stage": 3, "checkpoint_ratio": 0.5}),
        thorough("causal-lm", "gpt2", "torchrun", {"data": 1, "batching": "packed"}),
        thorough("sequence-classification", "bert", "torchrun", {"batching": "grouped"}),
        thorough("masked-lm", "bert", "accelerate", {}),
        thorough("causal-lm", "llama", "accelerate", {"batching": "packed"}),
        thorough("seq2seq", "t5", "deepspeed", {**DEEPSPEED, "zero_stage": 3}),
        thorough("sequence-classification", "gpt2", "deepspeed", {**DEEPSPEED, "zero_stage": 2}),
        thorough("masked-lm", "bert", "ray-train", {**DEEPSPEED, "zero_stage": 1}),
        thorough("seq2seq", "t5", "ray-train", {"zero_stage": 2}),
    ],
)
def test_an_export_moves_the_weights_by_the_gradient_of_the_plain_loop(
    task: str, model: str, form: str, knobs: dict[str, Any], tmp_path: Path
) -> None:
    plan = a_plan(**knobs)
    assert plan.accumulation > 1

    expected, taken = stepped(model_spec(task, model, tmp_path), plan, form, tmp_path)

    assert expected.largest_difference(taken.changes) < TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "form", "knobs"),
    [
        thorough({}, "torchrun", {}),
        thorough({"says_targets": True}, "torchrun", {"zero_stage": 3}),
        thorough({}, "accelerate", {}),
        thorough({"says_targets": True}, "deepspeed", {**DEEPSPEED, "zero_stage": 2}),
        thorough({}, "ray-train", {**DEEPSPEED, "zero_stage": 3}),
    ],
)
def test_an_export_weighs_a_functions_micro_batches_by_their_labels(
    config: dict[str, Any], form: str, knobs: dict[str, Any], tmp_path: Path
) -> None:
    spec = function_spec("make_answering", **config)

    expected, taken = stepped(spec, a_plan(**knobs), form, tmp_path)

    assert expected.largest_difference(taken.changes) < TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize(
    ("form", "knobs"),
    [
        ("torchrun", {"zero_stage": 3}),
        thorough("ray-train", {"zero_stage": 2, "offload_parameters": "cpu"}),
        thorough("torchrun", {}),
        thorough("deepspeed", {**DEEPSPEED, "zero_stage": 3}),
    ],
)
def test_an_export_gives_all_ranks_the_first_ones_weights_before_it_shards_them(
    form: str, knobs: dict[str, Any], tmp_path: Path
) -> None:
    """A function may draw weights from a generator that nobody seeds."""
    spec = function_spec("make", by_rank=True, width=8)

    expected, taken = stepped(spec, a_plan(**knobs), form, tmp_path)

    assert expected.largest_difference(taken.changes) < TOLERANCE


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("form", ["torchrun", "accelerate", "hf-trainer", "ray-train"])
def test_an_export_trains_a_model_with_weights_without_gradients(form: str, tmp_path: Path) -> None:
    """DDP would wait for them."""
    spec = model_spec("masked-lm", "esm", tmp_path)

    expected, taken = stepped(spec, a_plan(attention="eager"), form, tmp_path)

    assert expected.largest_difference(taken.changes) < TOLERANCE


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize(
    ("form", "knobs"),
    [
        ("torchrun", {"data": 1}),
        ("torchrun", {}),
        ("torchrun", {"zero_stage": 2}),
        ("ray-train", {"compression": "fp16"}),
    ],
)
def test_a_step_that_overflows_fp16_counts_as_none(
    form: str, knobs: dict[str, Any], tmp_path: Path
) -> None:
    spec = model_spec("causal-lm", "llama", tmp_path)
    train = spec.train.model_copy(update={"warmup_steps": 4})
    spec = spec.model_copy(update={"train": train})
    plan = a_plan(precision="fp16", **knobs)

    expected, taken = stepped(spec, plan, form, tmp_path, steps=(0, 1), overflows=True)

    assert taken.rates == {0.0}  # the first of the warm-up
    assert expected.largest_difference(taken.changes) < TOLERANCES["change in fp16"]
