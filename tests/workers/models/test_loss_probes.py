"""Probes of the loss, on models of transformers that keep it and on those that do not.

Which do not was found by comparing their training with an independent loop, sample by sample.
"""

import json
from typing import Any

import pytest

from search_spaces.errors import ModelError
from search_spaces.specification.schema import SweepSpec, Task
from tests.workers.models.tiny_models import on_meta
from workers.models.capabilities import bypasses_hooks
from workers.models.load import describe
from workers.models.loss_probes import LossFindings, probe_loss

SAME = 1e-5


# As Phi-3-128k has it: beyond 4096 tokens all positions of a batch turn by other factors
LONGROPE: dict[str, Any] = {
    "hidden_size": 3072,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "max_position_embeddings": 131072,
    "original_max_position_embeddings": 4096,
    "rope_parameters": {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0 + 0.01 * pair for pair in range(48)],
        "long_factor": [1.1 + pair for pair in range(48)],
    },
}


def probed(model_type: str, task: Task = "causal-lm", **config: Any) -> LossFindings:
    module = on_meta(model_type, task, **config)
    both = task == "causal-lm" and module._supports_sdpa
    return probe_loss(module, task, ("sdpa", "eager") if both else ("eager",))


@pytest.mark.cases_by_default(4)
@pytest.mark.parametrize(
    ("model_type", "task"),
    [
        ("llama", "causal-lm"),
        ("gpt2", "causal-lm"),
        ("qwen3", "causal-lm"),
        ("mixtral", "causal-lm"),
        ("opt", "causal-lm"),
        ("gptj", "causal-lm"),
        ("bloom", "causal-lm"),
        ("bert", "masked-lm"),
        ("roberta", "masked-lm"),
        ("t5", "seq2seq"),
        ("bert", "sequence-classification"),
        ("llama", "sequence-classification"),
    ],
)
def test_most_models_keep_the_loss(model_type: str, task: Task) -> None:
    found = probed(model_type, task)

    assert found.padding is not None
    assert found.padding < SAME
    assert found.batch is not None
    assert found.batch < SAME
    assert all(difference < SAME for _, difference in found.attentions)
    assert found.shifts_labels


@pytest.mark.cases_by_default(2)
@pytest.mark.parametrize(
    ("model_type", "task", "config"),
    [
        ("fnet", "masked-lm", {}),
        ("convbert", "masked-lm", {}),
        ("funnel", "masked-lm", {}),
        ("xlnet", "sequence-classification", {}),
        (
            "llama",
            "causal-lm",
            {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}},
        ),
        ("phi3", "causal-lm", LONGROPE),
    ],
    ids=["FNet", "ConvBERT", "Funnel", "XLNet", "dynamic RoPE", "longrope"],
)
def test_padding_changes_outputs_of_some(
    model_type: str, task: Task, config: dict[str, Any]
) -> None:
    found = probed(model_type, task, **config)

    assert found.padding is not None
    assert found.padding > 0.01


def test_positions_of_the_small_model_switch_within_its_samples(tmp_path: Any) -> None:
    """Phi-3 says twice where they do, and its factors are as many as a whole head needs."""
    (tmp_path / "config.json").write_text(json.dumps(on_meta("phi3", **LONGROPE).config.to_dict()))
    spec = SweepSpec.model_validate(
        {"model": str(tmp_path), "train": {"global_batch": 8, "sequence_length": 8192}}
    )
    facts = describe(spec.model, spec.train)

    assert facts.padding_difference > 0.01
    assert facts.padding_from == 4096
    assert facts.batch_difference < SAME
    assert "sdpa" in facts.packing
    assert dict(facts.attention_differences)["eager"] < SAME


def test_an_auxiliary_loss_of_experts_is_no_mean_over_samples() -> None:
    found = probed("mixtral", output_router_logits=True, router_aux_loss_coef=0.1)

    assert found.batch is not None
    assert found.batch > 1e-4


def test_attention_with_alibi_differs_in_falcon() -> None:
    found = dict(probed("falcon", alibi=True).attentions)

    assert found["eager"] > 1e-3


def test_weights_without_a_gradient_or_with_one_now_and_then_are_found() -> None:
    """ESM has a head for contacts, which its loss leaves out; OPT can skip layers at random."""
    esm, bert, opt = (
        probe_loss(on_meta(model_type, task, **config), task, ("eager",)).step
        for model_type, task, config in (
            ("esm", "masked-lm", {"vocab_size": 33, "mask_token_id": 32}),
            ("bert", "masked-lm", {}),
            ("opt", "causal-lm", {"layerdrop": 0.1, "num_hidden_layers": 4}),
        )
    )

    assert esm is not None
    assert bert is not None
    assert opt is not None
    assert [bool(found.unused) for found in (esm, bert, opt)] == [True, False, False]
    assert [bool(found.varying) for found in (esm, bert, opt)] == [False, False, True]


def past(model_type: str, task: Task) -> bool:
    return bypasses_hooks(on_meta(model_type, task), task)


def test_blocks_that_are_called_past_their_hooks_are_found() -> None:
    """SqueezeBERT calls `layer.forward(...)`, past what FSDP2 and torch.compile rely on."""
    assert past("squeezebert", "masked-lm")
    assert not past("bert", "masked-lm")
    assert not past("t5", "seq2seq")


def test_it_is_told_in_one_sentence(tmp_path: Any) -> None:
    (tmp_path / "config.json").write_text(
        '{"model_type": "bart", "architectures": ["BartForCausalLM"], "vocab_size": 100,'
        ' "d_model": 32, "decoder_layers": 2, "encoder_layers": 2, "decoder_attention_heads": 4,'
        ' "is_decoder": true}'
    )
    spec = SweepSpec.model_validate(
        {
            "model": {"name": str(tmp_path), "task": "causal-lm"},
            "train": {"global_batch": 8, "sequence_length": 64},
        }
    )

    with pytest.raises(ModelError, match="BartForCausalLM does not shift labels"):
        describe(spec.model, spec.train)


@pytest.mark.parametrize(
    ("model_type", "task", "words"),
    [
        ("llama", "causal-lm", None),
        ("gpt2", "causal-lm", None),
        ("t5", "seq2seq", None),
        ("mixtral", "causal-lm", None),
        ("llama", "sequence-classification", None),
        ("bert", "masked-lm", "no MLP"),
        ("bloom", "causal-lm", "do not compute tiles"),  # they take the residual too
    ],
)
def test_mlps_that_compute_each_token_alone_compute_tiles(
    model_type: str, task: Task, words: str | None
) -> None:
    refusal = probed(model_type, task).tile_refusal

    assert (refusal is None) if words is None else (words in (refusal or ""))


@pytest.mark.parametrize(
    ("model_type", "task", "words"),
    [
        ("llama", "causal-lm", None),
        ("bert", "masked-lm", None),
        ("gemma2", "causal-lm", "another one than the mean"),  # caps its logits
        ("granite", "causal-lm", "another one than the mean"),  # divides its logits
        ("llama", "sequence-classification", "no head"),
    ],
)
def test_a_head_computes_the_loss_of_models_that_return_its_outputs(
    model_type: str, task: Task, words: str | None
) -> None:
    # a cap so high that only large logits show it
    configs = {"granite": {"logits_scaling": 8.0}, "gemma2": {"final_logit_softcapping": 1e3}}
    config = configs.get(model_type, {})
    refusal = probed(model_type, task, **config).loss_refusal

    assert (refusal is None) if words is None else (words in (refusal or ""))
