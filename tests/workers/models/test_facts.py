"""Facts of a model, cached by the content that they follow from."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from search_spaces.errors import ModelError
from search_spaces.specification.schema import ModelSpec
from search_spaces.specification.sections import TrainSpec
from workers.models import facts, load
from workers.models.facts import model_facts
from workers.models.load import describe

PRESET = ModelSpec(name="llama-3.2-1b")
TRAIN = TrainSpec(global_batch=8, sequence_length=128)
READ = """
import sys
from search_spaces.specification.schema import ModelSpec, SweepSpec
from search_spaces.specification.sections import TrainSpec
from workers.models.facts import model_facts
from workers.prepare import prepare

model, train = ModelSpec(name=sys.argv[1]), TrainSpec(global_batch=8, sequence_length=128)
print(model_facts(model, train))
print(prepare(SweepSpec(model=model, train=train)))
print(sorted({"torch", "transformers"} & sys.modules.keys()))
"""


@pytest.fixture(autouse=True)
def _fresh_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    # test_isolation has the process of its own
    monkeypatch.setattr(facts, "run_apart", lambda task, request, _: task(request))
    facts._facts.cache_clear()


def test_drivers_and_ranks_read_cached_facts_without_a_framework() -> None:
    described = model_facts(PRESET, TRAIN)
    read = subprocess.run(
        [sys.executable, "-c", READ, PRESET.name], capture_output=True, text=True, check=True
    )

    assert described == describe(PRESET, TRAIN)
    assert read.stdout.splitlines() == [*2 * [repr(described)], "[]"]


def test_another_configuration_is_another_model(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    config = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": 64, "n_head": 4}
    blocks = []
    for count in (1, 2):
        (folder / "config.json").write_text(json.dumps({**config, "n_layer": count}))
        facts._facts.cache_clear()
        load._described.cache_clear()  # this process has read the folder before
        blocks.append(model_facts(ModelSpec(name=str(folder)), TRAIN).blocks)

    assert blocks == [1, 2]


def test_a_sample_that_is_too_long_is_refused_each_time() -> None:
    long = TrainSpec(global_batch=8, sequence_length=2048)
    for _ in range(2):
        with pytest.raises(ModelError, match="sequence_length is 2048"):
            model_facts(ModelSpec(name="gpt2"), long)


def test_a_damaged_file_is_written_anew(tmp_path: Path) -> None:
    described = model_facts(PRESET, TRAIN)
    (file,) = (tmp_path / "cache" / "plimsoll" / "models").iterdir()
    file.write_text("{", encoding="utf-8")
    facts._facts.cache_clear()

    assert model_facts(PRESET, TRAIN) == described
    assert file.read_text(encoding="utf-8") != "{"
