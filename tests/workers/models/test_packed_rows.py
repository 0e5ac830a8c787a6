"""Rows of packed samples, under every attention: no sample reads another.

Kernels of flash attention run only on CUDA. Stand-ins take their place inside transformers, whose
own code decides which of them is called and with what.
"""

from itertools import pairwise
from typing import Any, get_args

import numpy as np
import pytest
import torch
from torch.nn import functional
from transformers import AutoModelForCausalLM, LlamaConfig, modeling_flash_attention_utils

from search_spaces.plan import Attention
from workers.data.collate import Layout, MicroBatch, collate
from workers.models.capabilities import separating_attentions

LENGTHS, ROW = (5, 7, 4, 7), 12
VOCABULARY = 50


def _flash(q: Any, k: Any, v: Any, causal: bool = False, **_: Any) -> Any:
    """flash_attn_func: (rows, tokens, heads, size)."""
    q, k, v = (part.transpose(1, 2) for part in (q, k, v))
    mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)
    return mixed.transpose(1, 2)


def _flash_varlen(q: Any, k: Any, v: Any, *, cu_seqlens_q: Any, max_seqlen_q: Any, **_: Any) -> Any:
    """flash_attn_varlen_func: (tokens of all samples, heads, size)."""
    assert isinstance(max_seqlen_q, int)  # a tensor would have to come from the device
    bounds = list(pairwise(cu_seqlens_q.tolist()))
    assert bounds[-1][1] == len(q)
    assert max(end - start for start, end in bounds) <= max_seqlen_q
    parts = [_flash(*(part[None, a:b] for part in (q, k, v)), causal=True)[0] for a, b in bounds]
    return torch.cat(parts)


def _options(**given: Any) -> dict[str, Any]:
    bounds = {name: given[name] for name in ("max_seqlen_q", "max_seqlen_k") if name in given}
    return {"causal": given["is_causal"]} | bounds


@pytest.fixture
def model(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    kernels = (_flash, _flash_varlen, None, None, None), (_options, None)
    monkeypatch.setattr(
        modeling_flash_attention_utils, "lazy_import_flash_attention", lambda *_, **__: kernels
    )
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=VOCABULARY, initializer_range=0.2, use_cache=False,
    )  # fmt: skip
    made = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    made.config._attn_implementation = request.param  # the package need not be installed
    return made


def packed(samples: list[Any], attention: Attention) -> MicroBatch:
    layout = Layout(
        task="causal-lm",
        batching="packed",
        sequence_length=ROW,
        vocab_size=VOCABULARY,
        mask_token_id=0,
        seed=0,
        attention=attention,
    )
    return collate(range(len(samples)), samples, layout)


@pytest.mark.parametrize("model", get_args(Attention), indirect=True)
def test_the_loss_of_two_rows_is_that_of_their_samples_alone(model: Any) -> None:
    draw = np.random.default_rng(0)
    samples = [draw.integers(1, VOCABULARY, length).astype(np.int32) for length in LENGTHS]
    batch = packed(samples, model.config._attn_implementation)
    assert batch.inputs["input_ids"].shape == (2, ROW)

    together = model(**batch.on(torch.device("cpu"))).loss

    model.config._attn_implementation = "eager"
    alone = [
        model(input_ids=one, labels=one).loss * (one.numel() - 1)
        for one in (torch.tensor(sample[None], dtype=torch.int64) for sample in samples)
    ]
    torch.testing.assert_close(together, sum(alone) / batch.targets, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("model", ["flash_attention_2"], indirect=True)
def test_without_the_starts_of_samples_flash_attention_mixes_rows(model: Any) -> None:
    """The reason for them: transformers reads position ids of one row alone."""
    samples = [np.arange(1, 1 + length, dtype=np.int32) for length in LENGTHS]
    batch = packed(samples, "flash_attention_2")
    positions = {name: batch.inputs[name] for name in ("input_ids", "position_ids", "labels")}

    assert not torch.allclose(model(**batch.arguments).loss, model(**positions).loss, rtol=1e-3)


@pytest.mark.parametrize("model", ["eager"], indirect=True)
def test_the_probe_covers_flash_attention_where_it_cannot_run(model: Any) -> None:
    attentions: tuple[Attention, ...] = ("sdpa", "eager", "flash_attention_2")

    assert separating_attentions(model, attentions) == attentions
    assert separating_attentions(model, ("flash_attention_3",)) == ("flash_attention_3",)
