"""Counted work against sums by hand, published parameter counts and what a trial reports."""

from pathlib import Path
from typing import Any

import pytest

from search_spaces.costs.model_work import ModelWork, utilization
from search_spaces.costs.plan_encoding import VariantKey
from search_spaces.hardware.catalogue import find_device
from search_spaces.specification.schema import SweepSpec
from search_spaces.trial import Measured
from tests.search_spaces.costs.test_matmul_rates import H200
from tests.workers.launch import Group
from tests.workers.values import SHORT, a_request, a_spec, odd_model
from workers.models.load import describe
from workers.tracing.model_work import count_work
from workers.tracing.trace import trace

TOKENS = 64
BLOCK = 4 * 768**2 + 2 * 768 * 3072  # of GPT-2 and BERT: attention, and two layers of 3072


def published(name: str, tokens: int = TOKENS, **config: Any) -> SweepSpec:
    model: dict[str, Any] = {"name": name, "config": config}
    if name.startswith("bert"):
        model["task"] = "masked-lm"
    train = {"global_batch": 1, "sequence_length": tokens}
    return SweepSpec.model_validate({"model": model, "train": train})


def counted(spec: SweepSpec) -> ModelWork:
    work = count_work(spec)
    assert work is not None
    return work


def test_llama_by_hand() -> None:
    """Llama 3.2 1B: 16 blocks of width 2048, 8 of 32 heads for keys and values, a tied head."""
    tokens, width, narrow, inner, words = 2048, 2048, 512, 8192, 128_256
    block = 2 * width**2 + 2 * width * narrow + 3 * width * inner
    work = counted(published("llama-3.2-1b", tokens))

    assert work.matmul_flops == 6 * (16 * block + width * words)
    # two products forward and four backward, each of 2 FLOPs, with all tokens up to the own one
    assert work.attention_flops == 16 * 6 * 2 * width * (tokens + 1) / 2
    assert work.full_attention_flops == 12 * 16 * width * tokens
    head = max(work.layers, key=lambda layer: layer[1])  # by columns
    assert head[:3] == (8192, words, width)
    assert sum(layer[-1] for layer in work.layers) == work.matmul_flops / 3
    # 30.56 samples/s on an H200, as in benchmarks/results/gpu/h200/plans.csv
    spec = published("llama-3.2-1b", tokens)
    used = utilization(work, describe(spec.model, spec.train), H200, "bf16", 30.56 * tokens)
    assert (used.mfu, used.paper_mfu) == pytest.approx((0.695, 0.520), abs=0.001)


@pytest.mark.parametrize(
    ("name", "parameters", "looked_up", "layers", "width"),
    [
        # Radford et al. 2019: 124M, of which 1024 positions are only looked up (the words are the
        # head's weights too)
        ("gpt2", 124.44e6, 1024 * 768, 12, 768),
        # Llama 3 model card: 8.03B, of which the embedding of 128,256 words is only looked up
        pytest.param("llama-3-8b", 8.03e9, 128_256 * 4096, 32, 4096, marks=pytest.mark.thorough),
        # Jiang et al. 2024, arXiv:2401.04088: 12.9B active of 46.7B
        pytest.param("mixtral-8x7b", 12.9e9, 32_000 * 4096, 32, 4096, marks=pytest.mark.thorough),
    ],
)
def test_the_convention_of_papers_is_that_of_published_models(
    name: str, parameters: float, looked_up: float, layers: int, width: int
) -> None:
    spec = published(name)
    work = counted(spec)

    paper = work.paper_flops_per_token(describe(spec.model, spec.train))
    by_hand = 6 * (parameters - looked_up) + 12 * layers * width * TOKENS
    assert paper == pytest.approx(by_hand, rel=0.003)
    assert work.flops_per_token == pytest.approx(
        paper - 6 * layers * width * (TOKENS - 1), rel=0.003
    )


def test_attention_counts_the_pairs_that_attend() -> None:
    """Encoders attend everywhere; with a window, a token attends to no more than that."""
    small = {"num_hidden_layers": 2, "hidden_size": 768, "intermediate_size": 3072}
    pair = 2 * 12 * 768  # FLOPs of two blocks
    encoder = counted(published("bert-large", **small, num_attention_heads=12))
    assert encoder.attention_flops == pair * TOKENS == encoder.full_attention_flops

    heads = {"num_attention_heads": 12, "num_key_value_heads": 12}
    windowed = counted(published("mistral-7b", **small, **heads, head_dim=64, sliding_window=16))
    pairs = sum(min(token + 1, 16) for token in range(TOKENS))
    assert windowed.attention_flops == pair * pairs / TOKENS


def test_long_samples_attend_to_more() -> None:
    """Half the samples have 8 tokens, half have 24: 640 squared tokens in 32, not 16 a token."""
    alike = counted(a_spec(data={"lengths": {16: 1}}))
    mixed = counted(a_spec(data={"lengths": {8: 1, 24: 1}}))

    assert mixed.matmul_flops == pytest.approx(alike.matmul_flops, rel=1e-9)
    assert alike.full_attention_flops is not None
    assert mixed.full_attention_flops == pytest.approx(alike.full_attention_flops * 20 / 16)


@pytest.mark.parametrize("fault", ["peeks", "raises"])
def test_a_model_that_cannot_run_without_values_is_not_counted(fault: str) -> None:
    assert count_work(a_spec(model=odd_model(fault))) is None


@pytest.mark.parametrize("knobs", [{}, {"checkpoint_ratio": 1.0, "attention": "eager"}])
def test_plan_and_trial_count_alike(alone: Group, knobs: dict[str, Any], tmp_path: Path) -> None:
    spec = a_spec(data={"lengths": {48: 1}}, objective=SHORT)
    outcome = alone.run(a_request(spec, data=1, **knobs))

    assert isinstance(outcome, Measured)
    footprint = trace(spec, [VariantKey("sdpa", "fp32", "none")], device="cpu", cache=tmp_path)
    assert footprint.work is not None
    samples = outcome.samples_per_second.value * outcome.step_seconds.value
    assert outcome.flops_per_step == pytest.approx(footprint.work.flops_per_token * 48 * samples)
    forecast = utilization(
        footprint.work,
        describe(spec.model, spec.train),
        find_device("cpu"),
        "fp32",
        outcome.tokens_per_second,
    )
    assert outcome.mfu == pytest.approx(forecast.mfu)
    assert outcome.paper_mfu == pytest.approx(forecast.paper_mfu)
    assert outcome.ceiling == forecast.ceiling is not None
