"""Shapes of models, as their configurations state them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.record.rows import ModelShape, shape_of
from search_spaces.spec.schema import ModelSpec


@pytest.mark.parametrize(
    ("name", "config", "shape"),
    [
        ("llama-3.2-1b", {}, (2048, 32, 8, 8192)),
        ("gpt2", {"n_embd": 96, "n_head": 4}, (96, 4, 4, 384)),
        ("bert-large", {"num_hidden_layers": 2}, (1024, 16, 16, 4096)),
    ],
)
def test_presets(name: str, config: dict[str, int], shape: tuple[int, ...]) -> None:
    told = shape_of(ModelSpec(name=name, config=config))

    assert (told.hidden, told.heads, told.key_value_heads, told.feed_forward) == shape


def test_names_of_an_architecture_of_its_own(tmp_path: Path) -> None:
    fields = {"model_type": "t5", "d_model": 64, "num_heads": 4, "d_ff": 128}
    (tmp_path / "config.json").write_text(json.dumps(fields))

    told = shape_of(ModelSpec(name=str(tmp_path), task="seq2seq"))

    assert told == ModelShape(hidden=64, heads=4, key_value_heads=4, feed_forward=128)


def test_a_function_tells_nothing() -> None:
    assert shape_of(ModelSpec(name="tests.orchestrator.cluster.awkward_model:make")) == ModelShape()
