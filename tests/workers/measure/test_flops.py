"""Counted FLOPs against published parameter counts and the rule of two FLOPs per parameter."""

from __future__ import annotations

import pytest

from search_spaces.spec.schema import SweepSpec
from tests.workers.values import a_spec, odd_model
from workers.measure.flops import forward_flops_per_token

TOKENS = 64


def published(name: str) -> SweepSpec:
    return SweepSpec.model_validate(
        {"model": name, "train": {"global_batch": 1, "sequence_length": TOKENS}}
    )


@pytest.mark.cases_by_default(1)
@pytest.mark.parametrize(
    ("name", "parameters", "looked_up", "layers", "width"),
    [
        # Radford et al. 2019: 124M, of which 1024 positions are only looked up (the words are the
        # head's weights too)
        ("gpt2", 124.44e6, 1024 * 768, 12, 768),
        # Llama 3 model card: 8.03B, of which the embedding of 128,256 words is only looked up
        ("llama-3-8b", 8.03e9, 128_256 * 4096, 32, 4096),
    ],
)
def test_a_token_takes_two_flops_per_parameter_and_its_attention(
    name: str, parameters: float, looked_up: float, layers: int, width: int
) -> None:
    """Kaplan et al. 2020 (arXiv:2001.08361), section 2.1, with attention to all tokens."""
    attention = 4 * layers * TOKENS * width

    counted = forward_flops_per_token(published(name))

    assert counted == pytest.approx(2 * (parameters - looked_up) + attention, rel=0.01)


def test_a_users_model_is_counted_too() -> None:
    width, layers = 16, 2

    assert forward_flops_per_token(a_spec(model=odd_model("none"))) == 2 * layers * width**2


@pytest.mark.parametrize("fault", ["peeks", "raises"])
def test_a_model_that_cannot_run_without_values_is_not_counted(fault: str) -> None:
    assert forward_flops_per_token(a_spec(model=odd_model(fault))) is None
