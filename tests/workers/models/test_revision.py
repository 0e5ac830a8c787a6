"""Hub models are read at one commit, which a study keeps; code of a model needs one."""

import json
from pathlib import Path

import pytest

from search_spaces.errors import ModelError
from search_spaces.specification.schema import ModelSpec
from search_spaces.specification.sections import TrainSpec
from workers.models.facts import pinned
from workers.models.load import describe

TRAIN = TrainSpec(global_batch=8, sequence_length=16)
OLD, NEW = "a" * 40, "b" * 40
CODE = """
import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

class MineConfig(PreTrainedConfig):
    model_type = "mine"
    def __init__(self, width=WIDTH, vocab_size=32, **more):
        self.width, self.vocab_size = width, vocab_size
        super().__init__(**more)

class Mine(PreTrainedModel):
    config_class = MineConfig
    def __init__(self, config):
        super().__init__(config)
        self.embed = nn.Embedding(config.vocab_size, config.width)
        self.head = nn.Linear(config.width, config.vocab_size)
        self.post_init()

    def forward(self, input_ids, labels=None, **more):
        logits = self.head(self.embed(input_ids))
        loss = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return {"loss": loss, "logits": logits}
"""


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A local cache with two commits of `team/net`; its branch main is at the new one."""
    cache = tmp_path / "hub"
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
    monkeypatch.setattr("transformers.utils.hub.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(
        "transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules")
    )
    net = cache / "models--team--net"
    for commit, width in ((OLD, 4), (NEW, 8)):
        folder = net / "snapshots" / commit
        folder.mkdir(parents=True)
        names = {"AutoConfig": "mine.MineConfig", "AutoModelForCausalLM": "mine.Mine"}
        config = {"model_type": "mine", "auto_map": names, "width": width}
        (folder / "config.json").write_text(json.dumps(config))
        (folder / "mine.py").write_text(CODE.replace("WIDTH", str(width)))
    (net / "refs").mkdir()
    (net / "refs" / "main").write_text(NEW)
    return net


def test_s6_a_hub_model_gets_the_commit_that_its_branch_is_at(hub: Path) -> None:
    assert pinned(ModelSpec(name="team/net"), None).revision == NEW
    assert pinned(ModelSpec(name="team/net", revision="main"), OLD).revision == NEW
    assert pinned(ModelSpec(name="team/net", revision=OLD), None).revision == OLD


def test_s6_a_study_keeps_the_commit_it_began_with(hub: Path) -> None:
    assert pinned(ModelSpec(name="team/net"), OLD).revision == OLD


def test_models_without_a_hub_have_no_commit(tmp_path: Path) -> None:
    for name in ("gpt2", str(tmp_path), "package.module:make"):
        spec = ModelSpec(name=name)
        assert pinned(spec, OLD) is spec
    with pytest.raises(ModelError, match=r"model.revision is of a Hub id, and 'gpt2' is"):
        describe(ModelSpec(name="gpt2", revision=OLD), TRAIN)


@pytest.mark.parametrize("revision", [None, "main", NEW[:12]])
def test_s6_a_models_own_code_needs_a_commit(hub: Path, revision: str | None) -> None:
    (hub / "refs" / NEW[:12]).write_text(NEW)
    spec = ModelSpec(name="team/net", revision=revision, trust_remote_code=True)

    with pytest.raises(ModelError, match=r"trust_remote_code needs a commit in model.revision"):
        describe(spec, TRAIN)


def test_s6_the_code_of_the_commit_runs(hub: Path) -> None:
    for commit, width in ((OLD, 4), (NEW, 8)):
        spec = ModelSpec(name="team/net", revision=commit, trust_remote_code=True)
        assert describe(spec, TRAIN).parameters == 2 * 32 * width + 32


def test_s6_code_of_another_repository_has_no_commit(hub: Path) -> None:
    config = hub / "snapshots" / NEW / "config.json"
    tree = json.loads(config.read_text())
    tree["auto_map"]["AutoModelForCausalLM"] = "other/code--mine.Mine"
    config.write_text(json.dumps(tree))
    spec = ModelSpec(name="team/net", revision=NEW, trust_remote_code=True, config={"width": 16})

    with pytest.raises(ModelError, match=r"is in the repository other/code, which model\.revision"):
        describe(spec, TRAIN)
