"""The head computes the loss: as the model does, in the memory that is forecast."""

from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from orchestrator.forecast.calibration import Footprints
from orchestrator.forecast.planner import Planner, PlanningReport
from orchestrator.forecast.request import planning_request
from search_spaces.costs.calibration import shipped_calibration
from search_spaces.costs.footprint import Compute
from search_spaces.costs.plan_encoding import VariantKey
from search_spaces.hardware.catalogue import find_device, load_device_file
from search_spaces.plan import Loss
from search_spaces.specification.schema import SweepSpec
from search_spaces.specification.template import example_files
from search_spaces.trial import Measured, OutOfMemory, TrialRequest
from tests.workers.launch import Group
from tests.workers.tracing.footprint_check import peak_bytes
from tests.workers.values import CALL_SECONDS, LLAMA, STEPS, a_request, a_spec
from workers.models.load import build_whole, describe
from workers.plain_torch.head_loss import (
    LOSS_CHUNKS,
    chunked_loss,
    pad_words,
    replace_loss,
    whole_loss,
)
from workers.plain_torch.loss import loss_of
from workers.tracing.trace import trace

LOSSES: tuple[Loss, ...] = ("whole", "chunked")
ROOMY = a_spec(
    model={**LLAMA, "config": {**LLAMA["config"], "vocab_size": 64_000}},
    data={"lengths": {512: 1}},
    cluster={"memory_gib": 4.0},
    train={"sequence_length": 512},
)
H200 = Path(__file__).parents[3] / "benchmarks" / "results" / "gpu" / "h200" / "device.yaml"
CUDA = {"device": "cuda", "workers": 1, "memory_gib": 80}
DEMO_GIB = 0.6
FALL_ERROR = 0.1
CALLS = ((torch.float32, 1e-5), (torch.bfloat16, 2e-2), (torch.float16, 2e-3))


@pytest.mark.parametrize("tokens", [3, 50])  # fewer than chunks, and no multiple of them
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize(("dtype", "tolerance"), CALLS)
def test_chunks_and_padded_words_have_the_loss_and_the_gradients_of_all_logits(
    dtype: torch.dtype, tolerance: float, biased: bool, tokens: int
) -> None:
    torch.manual_seed(0)
    shapes = ((tokens, 16), (100, 16), (100,))[: 3 if biased else 2]
    inputs = [torch.randn(*shape, requires_grad=True) for shape in shapes]
    labels = torch.randint(0, 100, (tokens,))
    labels[1::3] = -100
    expected, *others = [
        _loss_and_gradients(loss_of, inputs, dtype, labels, multiple)
        for multiple, loss_of in product((1, 64), (whole_loss, chunked_loss))
    ]

    for other in others:
        for one, wanted in zip(other, expected, strict=True):
            torch.testing.assert_close(one, wanted, rtol=tolerance, atol=tolerance)


def _loss_and_gradients(
    loss_of: Callable[..., torch.Tensor],
    inputs: list[torch.Tensor],
    dtype: torch.dtype,
    labels: torch.Tensor,
    multiple: int,
) -> tuple[torch.Tensor, ...]:
    hidden, weight, *bias = (one.to(dtype) for one in inputs)
    padded = pad_words(weight, bias[0] if bias else None, multiple)
    assert len(padded[0]) == (100 if multiple == 1 else 128)
    loss = loss_of(hidden, *padded, labels)
    return loss, *torch.autograd.grad(3 * loss, inputs)


def test_gradients_in_fp16_do_not_vanish_before_the_loss_is_scaled() -> None:
    hidden = torch.full((4096, 4), 1e-3, dtype=torch.float16, requires_grad=True)
    weight = torch.eye(8, 4, dtype=torch.float16)
    chunked_loss(hidden, weight, None, torch.zeros(4096, dtype=torch.int64)).mul(2**16).backward()

    assert hidden.grad is not None
    assert hidden.grad[0, 0].item() == pytest.approx(2**16 * (1 / 8 - 1) / 4096, rel=1e-2)


def test_a_model_called_without_labels_returns_its_logits() -> None:
    model = build_whole(a_spec().model, a_spec().train, attention="eager").module
    tokens = torch.arange(12)[None]
    logits, loss = (getattr(model(tokens, labels=tokens), name) for name in ("logits", "loss"))
    assert replace_loss(model, "chunked", shifts=True)

    replaced = model(input_ids=tokens, labels=tokens)["loss"]

    torch.testing.assert_close(replaced, loss)
    torch.testing.assert_close(model(input_ids=tokens).logits, logits)


@pytest.mark.parametrize("kind", ["whole", "chunked"])
def test_padding_leaves_the_weights_as_they_are(kind: Loss) -> None:
    model = build_whole(a_spec().model, a_spec().train, attention="eager").module
    shapes = {name: weight.shape for name, weight in model.state_dict().items()}
    tokens = torch.arange(12)[None]
    expected = _trained(model, tokens)
    model.zero_grad()
    replace_loss(model, kind, shifts=True, vocab_multiple=64)

    torch.testing.assert_close(_trained(model, tokens), expected)
    assert {name: weight.shape for name, weight in model.state_dict().items()} == shapes
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight


def _trained(model: Any, tokens: torch.Tensor) -> list[torch.Tensor]:
    loss = loss_of(model(input_ids=tokens, labels=tokens))
    loss.backward()
    return [loss.detach(), *(weight.grad for weight in model.parameters())]


def test_a_trace_sees_padded_words(tmp_path: Path) -> None:
    config = {**LLAMA["config"], "vocab_size": 50_257}
    spec = a_spec(model={**LLAMA, "config": config})
    wanted = [
        VariantKey("sdpa", "autocast", "none", loss, multiple)
        for loss in LOSSES
        for multiple in (1, 64, 128)
    ]
    footprint = trace(spec, wanted, cache=tmp_path)
    for variant in footprint.variants:
        products = (*variant.head.forward.matmuls, *variant.head.backward.matmuls)
        sizes = {size for one in products for size in (one.columns.at(2), one.inner.at(2))}
        assert (50_304 in sizes) == (variant.vocab_multiple > 1), variant.key
        assert (50_257 in sizes) == (variant.vocab_multiple == 1), variant.key


def test_padded_words_are_forecast_to_be_faster_on_tensor_cores() -> None:
    config = {**LLAMA["config"], "vocab_size": 50_257}
    sections = {"data": {"lengths": {64: 1}}, "train": {"precision": "bf16"}}
    spec = a_spec(model={**LLAMA, "config": config}, cluster=CUDA, **sections)
    (h200,) = load_device_file(H200)
    request = planning_request(spec, describe(spec.model, spec.train), h200)
    footprints = Footprints(spec, request.kind, run_code=True)
    best = Planner(request, footprints, shipped_calibration()).plan().best

    assert best is not None
    assert best.plan.vocab_multiple == 64


@pytest.mark.parametrize("compute", ["fp32", "cast"])
def test_a_trace_sees_the_chunks(compute: Compute, tmp_path: Path) -> None:
    wanted = [VariantKey("sdpa", compute, "none", loss) for loss in ("whole", "chunked", "fused")]
    footprint = trace(ROOMY, wanted, device="cpu", cache=tmp_path)
    whole, chunked, fused = (variant.head for variant in footprint.variants)
    logits = 4.0 * 512 * 64_000  # bytes of a sample

    assert fused == chunked
    assert whole.saved_bytes.per_sample > logits > LOSS_CHUNKS * chunked.saved_bytes.per_sample
    peaks = [float(head.forward.transient_bytes.at(4)) for head in (whole, chunked)]
    assert peaks[0] + whole.saved_bytes.at(4) > 3 * (peaks[1] + chunked.saved_bytes.at(4))
    products = [
        sum(one.count * one.rows.at(4) * one.columns.at(4) * one.inner.at(4) for one in matmuls)
        for matmuls in (
            (*head.forward.matmuls, *head.backward.matmuls) for head in (whole, chunked)
        )
    ]
    assert products[0] == pytest.approx(products[1])


@pytest.mark.thorough
def test_the_peak_of_a_step_falls_as_traced() -> None:
    """Prints a row of the table in `docs/knobs.md`; the resident memory of a rank is measured."""
    group, peaks, traced = Group(1, ROOMY), [], []
    footprint = trace(ROOMY, [VariantKey("sdpa", "fp32", "none", loss) for loss in LOSSES])
    for loss, variant in zip(LOSSES, footprint.variants, strict=True):
        outcome = group.run(a_request(ROOMY, loss=loss, data=1, micro_batch=4))
        assert isinstance(outcome, Measured), outcome
        peaks.append(outcome.memory.peak_bytes)
        traced.append(peak_bytes(variant, 4))
        print(f"{loss}: {peaks[-1] / 1e6:.0f} MB, {outcome.step_seconds.value:.2f} s a step")
    group.stop()

    assert peaks[0] > 4 * peaks[1]
    assert peaks[0] - peaks[1] == pytest.approx(traced[0] - traced[1], rel=FALL_ERROR)


def demo_report(**space: list[str]) -> tuple[SweepSpec, PlanningReport]:
    """Plans the demo's model with a vocabulary of 64,000 on samples of 512 tokens."""
    tree = yaml.safe_load(example_files("demo")["demo.yaml"])
    tree["model"]["config"]["vocab_size"] = 64_000
    tree["cluster"]["memory_gib"] = DEMO_GIB
    tree["train"] |= {"global_batch": 4, "sequence_length": 512}
    tree |= {"data": {"lengths": {512: 1}}, "space": space, "objective": {"max_steps": STEPS}}
    spec = SweepSpec.model_validate(tree)
    request = planning_request(spec, describe(spec.model, spec.train), find_device("cpu"))
    footprints = Footprints(spec, request.kind, run_code=True)
    return spec, Planner(request, footprints, shipped_calibration()).plan()


@pytest.mark.thorough
def test_the_demo_with_a_wide_vocabulary_fits_a_budget_that_no_plan_with_all_logits_fits() -> None:
    _, before = demo_report(loss=["whole"])
    spec, after = demo_report()

    assert before.best is None
    assert before.recommendation.nearest is not None
    assert after.best is not None
    assert after.best.plan.loss == "chunked"
    group = Group(2, spec)
    outcomes = [
        group.run(TrialRequest(number=0, plan=plan, spec=spec, collective_seconds=CALL_SECONDS))
        for plan in (before.recommendation.nearest.plan, after.best.plan)
    ]
    group.stop()
    assert isinstance(outcomes[0], OutOfMemory), outcomes[0]
    assert isinstance(outcomes[1], Measured), outcomes[1]
