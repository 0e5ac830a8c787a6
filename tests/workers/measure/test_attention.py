"""The attention backend of a trial: the one that torch ran, by its own operators."""

from typing import Any

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention
from torch.profiler import profile

from search_spaces.trial import Measured
from tests.workers.launch import Group
from tests.workers.values import a_request
from workers.measure.attention import AttentionBackends


@pytest.mark.parametrize(
    ("call", "backend", "operator"),
    [
        ({}, "flash_attention", "flash_attention_for_cpu"),
        ({"is_causal": True, "scale": 0.5}, "flash_attention", "flash_attention_for_cpu"),
        ({"dropout_p": 0.1}, "math", "attention_math"),
    ],
)
def test_the_backend_is_the_one_whose_operator_runs(
    call: dict[str, Any], backend: str, operator: str
) -> None:
    heads = torch.randn(1, 2, 8, 16, requires_grad=True)
    with AttentionBackends() as chosen, profile() as profiled:
        scaled_dot_product_attention(heads, heads, value=heads, **call)

    assert chosen.names == (backend,)
    assert f"aten::_scaled_dot_product_{operator}" in {
        event.key for event in profiled.key_averages()
    }


@pytest.mark.cases_by_default(2)
@pytest.mark.parametrize(
    ("knobs", "backends"),
    [
        ({"attention": "sdpa"}, ("flash_attention",)),
        ({"attention": "sdpa", "checkpoint_ratio": 1.0}, ("flash_attention",)),
        ({"attention": "sdpa", "precision": "bf16"}, ("flash_attention",)),  # under autocast
        ({"attention": "eager"}, ()),
    ],
)
def test_a_trial_tells_its_attention_backends(
    alone: Group, knobs: dict[str, Any], backends: tuple[str, ...]
) -> None:
    outcome = alone.run(a_request(data=1, **knobs))

    assert isinstance(outcome, Measured)
    assert outcome.attention_backends == backends


@pytest.mark.cases_by_default(1)
@pytest.mark.parametrize(
    "knobs", [{"tensor": 2, "data": 1}, {"pipeline": 2, "data": 1}, {"zero_stage": 3}]
)
def test_ranks_that_split_the_model_tell_them_too(pair: Group, knobs: dict[str, Any]) -> None:
    outcome = pair.run(a_request(attention="sdpa", **knobs))

    assert isinstance(outcome, Measured)
    assert outcome.attention_backends == ("flash_attention",)
