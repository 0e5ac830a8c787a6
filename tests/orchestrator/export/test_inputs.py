"""Inputs of an export: copies, references, and the search for missing ones."""

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from orchestrator.export import inputs
from orchestrator.export.bundle import write_bundle
from orchestrator.export.formats import export_bundle
from search_spaces.errors import UserError
from search_spaces.settings.export_manifest import (
    INPUTS_VARIABLE,
    code_folder,
    load_exported_spec,
    missing_input,
)
from search_spaces.specification.schema import SweepSpec
from tests.orchestrator.export.folders import taken_of
from tests.workers.values import LLAMA, a_plan, a_spec
from workers.api import Reference

MODULE = """
import torch
from {helper} import SIZE
import json, torch.nn
class Net(torch.nn.Linear):
    def forward(self, x):
        return super().forward(x).mean()
def make():
    return Net(SIZE, 1), lambda numbers: {{"x": torch.ones(len(numbers), SIZE)}}
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory, with data, a tokenizer, a model folder and modules."""
    folder = tmp_path / "project"
    for name in ("data/a/one.txt", "data/b/one.txt", "tok/words.bin", "net/weights.bin"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"{name} holds words enough for a sample\n\n" * 9)
    words = WordLevel({"holds": 0, "[UNK]": 1}, unk_token="[UNK]")
    tokenizer = Tokenizer(words)
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(folder / "tok" / "tokenizer.json"))
    (folder / "net" / "config.json").write_text(json.dumps({"model_type": "llama"}))
    (folder / "net" / "tokenizer.json").write_text("{}")
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def modules(project: Path) -> Iterator[None]:
    """A user module, the modules that it imports, and one that it does not import."""
    (project / "users_net.py").write_text(MODULE.format(helper="users_parts.sizes"))
    (project / "users_parts").mkdir()
    (project / "users_parts" / "sizes.py").write_text("from users_base import SIZE\n")
    (project / "users_parts" / "table.json").write_text("[]")
    (project / "users_base.py").write_text("SIZE = 7\n")
    (project / "users_other.py").write_text("import users_base\n")
    yield
    for name in [name for name in sys.modules if name.startswith("users_")]:
        del sys.modules[name]


def export_of(spec: SweepSpec, folder: Path, form: str = "torchrun") -> Path:
    """Exports to a folder and moves it; its project is deleted."""
    what = taken_of(a_plan(), spec=spec)
    write_bundle(export_bundle(what, form), what, folder / "out")
    moved = folder / "elsewhere" / "moved"
    moved.parent.mkdir()
    (folder / "out").rename(moved)
    return moved


def test_small_inputs_go_along(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = ["data/a/one.txt", str(project / "data" / "b" / "one.txt")]
    spec = a_spec(data={"files": files, "lengths": {}, "tokenizer": "tok/tokenizer.json"})
    texts = [Path(file).read_text() for file in files]
    folder = export_of(spec, tmp_path)
    shutil.rmtree(project)
    monkeypatch.chdir("/")

    data = load_exported_spec(folder).data

    assert [Path(file).read_text() for file in data.files] == texts
    assert data.files[0] == str(folder / "inputs" / "data" / "a" / "one.txt")
    assert data.tokenizer == str(folder / "inputs" / "tokenizer" / "tokenizer.json")
    assert missing_input(str(folder / "train.py")) is None


def test_a_folder_of_data_goes_along_without_what_is_hidden(project: Path) -> None:
    (project / "data" / ".git").mkdir()
    (project / "data" / ".git" / "config").touch()
    collected = inputs.collect_inputs(a_spec(data={"files": ["data"], "lengths": {}}))

    assert set(collected.files) == {"inputs/data/data/a/one.txt", "inputs/data/data/b/one.txt"}
    assert collected.spec.data.files == ("inputs/data/data",)


def test_of_a_models_folder_all_but_its_weights_goes_along(project: Path, tmp_path: Path) -> None:
    spec = a_spec(model={"name": "./net", "config": LLAMA["config"]}, data={"tokenizer": "net"})
    folder = export_of(spec, tmp_path)
    shutil.rmtree(project / "net")

    there = load_exported_spec(folder)

    assert there.model.name == str(folder / "inputs" / "model")
    assert there.data.tokenizer == str(folder / "inputs" / "tokenizer")
    carried = {file.name for file in (folder / "inputs" / "model").iterdir()}
    assert carried == {"config.json", "tokenizer.json"}
    module, blocks = Reference.here(str(folder / "train.py")).model()
    assert (type(module).__name__, len(blocks)) == ("LlamaForCausalLM", 2)


def test_a_module_goes_along_with_those_that_it_imports(
    project: Path, modules: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = export_of(a_spec(model={"name": "users_net:make"}), tmp_path)
    carried = folder / "inputs" / "code"
    names = {file.relative_to(carried).as_posix() for file in carried.rglob("*.*")}
    assert names == {
        *("users_net.py", "users_parts/sizes.py", "users_parts/table.json", "users_base.py")
    }
    # what the current directory holds of that name is not what was measured
    (project / "users_base.py").write_text("SIZE = 8\n")
    monkeypatch.syspath_prepend(str(project))

    module, _ = Reference.here(str(folder / "train.py")).model()

    assert code_folder(folder) == carried
    assert sum(weight.numel() for weight in module.parameters()) == 7 + 1


def test_a_large_input_is_referenced_and_can_be_elsewhere(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inputs, "MAX_COPIED_BYTES", 500)
    spec = a_spec(data={"files": ["data/a/one.txt", "data/b/one.txt"], "lengths": {}})
    folder = export_of(spec, tmp_path)
    source = project / "data" / "b" / "one.txt"

    assert not (folder / "inputs").exists()
    assert load_exported_spec(folder).data.files[1] == str(source)
    told = (folder / "README.md").read_text()
    assert f"`{source}`, which is not in this folder" in told

    source.unlink()
    words = missing_input(str(folder / "train.py"))
    assert words == (
        f"moved: data/b/one.txt is missing: searched at {source}; put it there, or set"
        f" {INPUTS_VARIABLE} to a folder that holds data/b/one.txt"
    )
    with pytest.raises(UserError, match=r"data/b/one\.txt is missing"):
        load_exported_spec(folder)

    (tmp_path / "mounted" / "data" / "b").mkdir(parents=True)
    (tmp_path / "mounted" / "data" / "b" / "one.txt").write_text("words")
    monkeypatch.setenv(INPUTS_VARIABLE, str(tmp_path / "mounted"))
    assert missing_input(str(folder / "train.py")) is None
    found = load_exported_spec(folder).data.files
    assert found == (
        *(str(project / "data" / "a" / "one.txt"), str(tmp_path / "mounted/data/b/one.txt")),
    )


def test_the_command_starts_the_folder_from_elsewhere() -> None:
    def command(form: str, **knobs: Any) -> str:
        return export_bundle(taken_of(a_plan(**knobs)), form).command_from(Path("my runs/out"))

    assert command("torchrun", allocator="mmap") == (
        "MALLOC_MMAP_THRESHOLD_=1048576 torchrun --nproc-per-node 2 'my runs/out/train.py'"
    )
    assert command("accelerate") == (
        "accelerate launch --config_file 'my runs/out/accelerate_config.yaml'"
        " 'my runs/out/train.py'"
    )
    assert command("rayjob") == "kubectl apply -k 'my runs/out'"
