"""Sentences of `plimsoll check` on each kind of model that a probe finds something about."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli import main
from search_spaces.spec.schema import Task

FAQ = Path(__file__).parents[3] / "docs" / "faq.md"
SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 128,
}
ROPE = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}
MODELS: dict[str, tuple[Task, dict[str, Any]]] = {
    "Dynamic RoPE": (
        "causal-lm",
        SIZES | {"model_type": "llama", "max_position_embeddings": 32, "rope_parameters": ROPE},
    ),
    "XLNet classification": (
        "sequence-classification",
        {"model_type": "xlnet", "d_model": 64, "n_layer": 2, "n_head": 4, "vocab_size": 128},
    ),
    "Mixtral with an auxiliary loss": (
        "causal-lm",
        SIZES
        | {"model_type": "mixtral", "output_router_logits": True, "router_aux_loss_coef": 0.1},
    ),
    "Falcon with ALiBi": (
        "causal-lm",
        {
            "model_type": "falcon",
            "alibi": True,
            "hidden_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "vocab_size": 128,
        },
    ),
    "BartForCausalLM": (
        "causal-lm",
        {
            "model_type": "bart",
            "architectures": ["BartForCausalLM"],
            "is_decoder": True,
            "d_model": 32,
            "decoder_layers": 2,
            "decoder_attention_heads": 4,
            "vocab_size": 128,
        },
    ),
}
_ROW = re.compile(r"^\| (?P<kind>[^|]+) \| (?P<sentence>[^|]+) \|$", re.MULTILINE)


def quoted(kind: str) -> str:
    """Returns the sentence that the page has for a kind of model."""
    page = FAQ.read_text(encoding="utf-8")
    rows = {row["kind"]: row["sentence"] for row in _ROW.finditer(page)}
    return rows[kind]


def spec_for(model: dict[str, Any], folder: Path) -> Path:
    """Writes a specification in a folder; a function makes its own data."""
    spec: dict[str, Any] = {
        "model": model,
        "cluster": {"device": "cpu", "workers": 2},
        "train": {"global_batch": 8, "sequence_length": 64},
    }
    if ":" not in model["name"]:
        spec["data"] = {"lengths": {16: 1, 64: 2}}
    file = folder / "sweep.yaml"
    file.write_text(json.dumps(spec))
    return file


@pytest.mark.thorough
@pytest.mark.parametrize("kind", MODELS)
def test_a_model_of_transformers(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task, config = MODELS[kind]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(SystemExit) as ended:
        main(["check", str(spec_for({"name": str(tmp_path), "task": task}, tmp_path))])

    printed = capsys.readouterr()
    assert ended.value.code == (2 if kind == "BartForCausalLM" else 0)
    assert quoted(kind) in " ".join((printed.out + printed.err).split())
