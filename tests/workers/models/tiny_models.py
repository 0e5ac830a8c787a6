"""Small models for tests: real architectures with few and narrow layers."""

from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
)

from search_spaces.specification.schema import ModelSpec, Task

_HEADS: dict[Task, Any] = {
    "causal-lm": AutoModelForCausalLM,
    "masked-lm": AutoModelForMaskedLM,
    "seq2seq": AutoModelForSeq2SeqLM,
    "sequence-classification": AutoModelForSequenceClassification,
}


def on_meta(model_type: str, task: Task = "causal-lm", **config: Any) -> Any:
    """Returns a stock model of a type, on the meta device."""
    made = AutoConfig.for_model(model_type, **config)
    with torch.device("meta"):
        return _HEADS[task].from_config(made, attn_implementation="eager")


TINY_LLAMA = ModelSpec(
    name="llama-3.2-1b",
    config={
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 512,
        "initializer_range": 0.2,  # attention shows in the loss
    },
)
TINY_GPT2 = ModelSpec(
    name="gpt2",
    config={
        "hidden_size": 32,
        "n_layer": 2,
        "n_head": 4,
        "n_positions": 128,
        "vocab_size": 512,
        "initializer_range": 0.2,
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
    },
)
TINY_BERT = ModelSpec(
    name="bert-large",
    task="masked-lm",
    config={
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "vocab_size": 512,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    },
)
