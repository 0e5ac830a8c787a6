"""Tiny models of many architectures, for tests of tensor parallelism."""

import json
from pathlib import Path
from typing import Any

from search_spaces.specification.schema import SweepSpec
from tests.workers.values import LLAMA, a_spec

_SIZES = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 300,
    "initializer_range": 0.2,  # attention shows in the loss
}
_STILL = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
_FOLDERS: dict[str, dict[str, Any]] = {
    "opt": {
        "hidden_size": 32, "ffn_dim": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "word_embed_proj_dim": 32, "max_position_embeddings": 64, "vocab_size": 300,
        "dropout": 0.0, "attention_dropout": 0.0, "init_std": 0.2,
    },
    "t5": {
        "d_model": 32, "d_ff": 64, "d_kv": 8, "num_heads": 4, "num_layers": 2,
        "num_decoder_layers": 2, "vocab_size": 300, "dropout_rate": 0.0,
        "decoder_start_token_id": 0,
    },
    "roberta": {**_SIZES, **_STILL, "max_position_embeddings": 70},
    "gpt_neox": {
        **_SIZES, "hidden_dropout": 0.0, "attention_dropout": 0.0, "max_position_embeddings": 64
    },
}  # fmt: skip
_PRESETS: dict[str, dict[str, Any]] = {
    "gpt2": {
        "name": "gpt2",
        "config": {
            "hidden_size": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "vocab_size": 300,
            "initializer_range": 0.2, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0,
        },
    },
    "bert": {"name": "bert-large", "task": "masked-lm", "config": {**_SIZES, **_STILL}},
    "qwen2": {"name": "qwen2.5-0.5b", "config": {**_SIZES, "num_key_value_heads": 2}},
    "qwen3": {
        "name": "qwen3-8b", "config": {**_SIZES, "num_key_value_heads": 2, "head_dim": 8}
    },
    "llama": LLAMA,
    "llama, untied": {**LLAMA, "config": {**LLAMA["config"], "tie_word_embeddings": False}},
}  # fmt: skip
_TASKS = {"t5": "seq2seq", "roberta": "masked-lm"}
ARCHITECTURES = (*_PRESETS, *_FOLDERS)


def split_spec(architecture: str, folder: Path, **config: Any) -> SweepSpec:
    """Returns a spec of a tiny model; `config` changes its fields."""
    if architecture in _PRESETS:
        model = _PRESETS[architecture]
    else:
        fields = {"model_type": architecture, **_FOLDERS[architecture]}
        (folder / "config.json").write_text(json.dumps(fields))
        task = _TASKS.get(architecture, "causal-lm")
        model = {"name": str(folder), "task": task, "config": {}}
    return a_spec(model={**model, "config": {**model["config"], **config}})
