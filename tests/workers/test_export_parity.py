"""Exported scripts take the steps that were measured: gradients of a plain loop, clipped.

Each task and format is compared by steps of SGD; AdamW would hide a gradient that is too long by
a factor, as the steps of a Trainer whose model ignores its count of labels.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from search_spaces.plan import Plan
from search_spaces.specification.schema import SweepSpec
from search_spaces.trial import TrialRequest
from tests.orchestrator.export.folders import taken_of
from tests.workers.parity.architectures import clipped, function_spec, model_folder, spec_of
from tests.workers.parity.comparison import TOLERANCES
from tests.workers.parity.exported import FirstSteps, first_steps
from tests.workers.parity.plain_loop import FIRST_STEPS, Reference, reference
from tests.workers.parity.ranks import steps, tensors
from tests.workers.values import a_plan

TOLERANCE = TOLERANCES["change"]
COARSE = (
    0.05  # of all changes in bf16: a few are rounded otherwise, where sums run in another order
)
ONE_ROUNDING = 0.25  # of the largest change
DEEPSPEED = {"engine": "deepspeed"}


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


MODELS = {
    "llama": "causal-lm",
    "gpt2": "causal-lm",
    "bert": "masked-lm",
    "t5": "seq2seq",  # its loss ignores the number of labels that Trainer counts
    "esm": "masked-lm",  # has weights without gradients, for which DDP would wait
}
FUNCTIONS: dict[str, dict[str, Any]] = {
    "by labels": {"function": "make_answering"},
    "by targets": {"function": "make_answering", "says_targets": True},
    "by weights": {"function": "loss_models:make", "loss": "sample weights", "as_arrays": True},
    "in a mapping": {"function": "loss_models:make", "loss": "mapping"},
    "unused": {"function": "make_weights"},
    # each rank draws its weights from a generator that nobody seeds
    "by rank": {"function": "make", "by_rank": True, "width": 8},
}
DEFAULT = ("by rank", "torchrun", {"zero_stage": 3})
MORE: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("by weights", "torchrun", {}),
    ("in a mapping", "accelerate", {}),
    ("in a mapping", "deepspeed", {**DEEPSPEED, "zero_stage": 2}),
    ("t5", "hf-trainer", {}),
    ("bert", "hf-trainer", {"data": 1, "batching": "grouped"}),
    ("llama", "hf-trainer", {**DEEPSPEED, "zero_stage": 3}),
    ("t5", "torchrun", {"zero_stage": 3, "checkpoint_ratio": 0.5}),
    ("llama", "torchrun", {"zero_stage": 3, "checkpoint_ratio": 1.0, "offloaded_blocks": 1}),
    ("gpt2", "torchrun", {"data": 1, "batching": "packed"}),
    ("bert", "accelerate", {}),
    ("llama", "accelerate", {"batching": "packed"}),
    ("t5", "deepspeed", {**DEEPSPEED, "zero_stage": 3}),
    ("bert", "ray-train", {**DEEPSPEED, "zero_stage": 1}),
    *((model, "torchrun", {"loss": "chunked"}) for model in ("llama", "t5")),
    ("bert", "hf-trainer", {"loss": "chunked"}),
    ("llama", "hf-trainer", {"vocab_multiple": 128}),
    ("llama", "torchrun", {"mlp_tiles": 4, "zero_stage": 3, "checkpoint_ratio": 0.5}),
    ("t5", "deepspeed", {**DEEPSPEED, "zero_stage": 3, "mlp_tiles": 2}),
    ("bert", "torchrun", {"vocab_multiple": 128, "loss": "chunked"}),
    ("gpt2", "deepspeed", {**DEEPSPEED, "zero_stage": 3, "vocab_multiple": 128}),
    ("llama", "accelerate", {"loss": "chunked"}),
    ("llama", "torchrun", {"micro_batch_tokens": 24, "batching": "grouped", "zero_stage": 3}),
    ("gpt2", "deepspeed", {**DEEPSPEED, "zero_stage": 2, "micro_batch_tokens": 24}),
    ("bert", "accelerate", {"micro_batch_tokens": 24, "batching": "grouped"}),
    ("llama", "deepspeed", {**DEEPSPEED, "zero_stage": 3, "loss": "chunked"}),
    ("by labels", "torchrun", {}),
    ("by targets", "torchrun", {"zero_stage": 3}),
    ("by targets", "deepspeed", {**DEEPSPEED, "zero_stage": 2}),
    ("by labels", "ray-train", {**DEEPSPEED, "zero_stage": 3}),
    ("by rank", "ray-train", {"zero_stage": 2, "offload_parameters": "cpu"}),
    ("by rank", "deepspeed", {**DEEPSPEED, "zero_stage": 3}),
    *(("esm", form, {"attention": "eager"}) for form in ("torchrun", "accelerate", "hf-trainer")),
    ("esm", "ray-train", {"attention": "eager"}),
    *(("unused", form, {}) for form in ("torchrun", "accelerate", "ray-train")),
)


def model_spec(model: str, folder: Path) -> SweepSpec:
    if model in FUNCTIONS:
        return function_spec(**FUNCTIONS[model])
    name, _, classes = model.partition(", ")
    task = "sequence-classification" if classes else MODELS[name]
    return spec_of(task, model_folder(name, folder))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "form", "knobs"),
    [DEFAULT, *(pytest.param(*case, marks=pytest.mark.thorough) for case in MORE)],
    ids=str,
)
def test_an_export_moves_the_weights_by_the_gradient_of_the_plain_loop(
    model: str, form: str, knobs: dict[str, Any], tmp_path: Path
) -> None:
    plan = a_plan(**knobs)
    assert plan.accumulation > 1

    expected, taken = stepped(model_spec(model, tmp_path), plan, form, tmp_path)

    assert expected.largest_difference(taken.changes) < TOLERANCE


IN_BF16: tuple[tuple[str, dict[str, Any]], ...] = (
    ("torchrun", {}),
    ("torchrun", {"zero_stage": 3}),
    ("accelerate", {}),
    ("hf-trainer", {}),
    ("hf-trainer", {**DEEPSPEED, "zero_stage": 2}),
    ("deepspeed", {**DEEPSPEED, "zero_stage": 3}),
)


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize(("form", "knobs"), IN_BF16, ids=str)
def test_an_export_holds_states_in_bf16_as_the_worker_does(
    groups: Any, form: str, knobs: dict[str, Any], tmp_path: Path
) -> None:
    """Both round the same changes, which are coarse in bf16."""
    plan = a_plan(**knobs, precision="bf16", states="bf16")
    expected = reference(model_spec("llama", tmp_path))
    spec = clipped(model_spec("llama", tmp_path), expected.clip)
    rate = 10 * expected.rate
    request = TrialRequest(number=0, plan=plan, spec=spec)
    moved = tensors(groups.of(2).call(steps, request, rate, FIRST_STEPS))[0]

    taken = first_steps(taken_of(plan, spec=spec), form, rate, tmp_path / "out")

    changes = {expected.change_of(name)[0]: change for name, change in moved.items()}
    assert all(torch.equal(one, one.bfloat16().float()) for one in changes.values())
    assert replace(expected, changes=changes).largest_difference(taken.changes) < ONE_ROUNDING
    pairs = [(expected.change_of(name)[0], one) for name, one in taken.changes[0].items()]
    apart = torch.cat([(one - changes[name]).flatten() for name, one in pairs]).norm()
    assert apart < COARSE * torch.cat([one.flatten() for one in changes.values()]).norm()


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize(
    ("form", "knobs"),
    [
        ("torchrun", {"data": 1}),
        ("torchrun", {}),
        ("torchrun", {"zero_stage": 2}),
        ("ray-train", {}),
    ],
)
def test_a_step_that_overflows_fp16_counts_as_none(
    form: str, knobs: dict[str, Any], tmp_path: Path
) -> None:
    spec = model_spec("llama", tmp_path)
    train = spec.train.model_copy(update={"warmup_steps": 4})
    spec = spec.model_copy(update={"train": train})
    plan = a_plan(precision="fp16", **knobs)

    expected, taken = stepped(spec, plan, form, tmp_path, steps=(0, 1), overflows=True)

    assert taken.rates == {0.0}  # the first of the warm-up
    assert expected.largest_difference(taken.changes) < TOLERANCES["change in fp16"]
