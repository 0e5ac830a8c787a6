"""`plimsoll init`: a folder is looked at, and recipes answer their questions."""

import json
import shlex
from pathlib import Path

import jsonschema
import pytest
import yaml

from orchestrator.host import system_facts
from search_spaces.presets.catalogue import preset_config
from search_spaces.specification.load import load_spec
from search_spaces.specification.template import RECIPES
from tests.orchestrator.cli.commands import command

Capture = pytest.CaptureFixture[str]
SMALL = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64, "vocab_size": 300}
RECORDS = "".join(f'{{"text": "{word} and more"}}\n' for word in ("one", "two", "three"))
FILES = {  # only the first two are a model's and data
    "model/config.json": json.dumps(preset_config("gpt2") | SMALL),
    "corpus": RECORDS,
    "config.json": '{"port": 80}',
    "broken/config.json": "{",
    "package.json": '{"name": "mine", "version": "1"}',
    "requirements.txt": "torch\n",
    "README.md": "# Mine\n\nText.\n",
    "train.py": "print()\n",
    "metrics.csv": "step,loss\n1,2\n",
    ".cache/more.jsonl": RECORDS,
    "~$more.jsonl": RECORDS,
    "${more}.jsonl": RECORDS,
    "image.bin": "\0\0",
}


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes an empty folder the current one."""
    monkeypatch.chdir(tmp_path)


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")


@pytest.mark.parametrize("below", [False, True])
def test_writes_ten_lines_of_what_the_folder_has(below: bool, capsys: Capture) -> None:
    folder = Path("project" if below else "")
    write(folder, FILES)
    (folder / "link").symlink_to(".")

    code, said = command(capsys, "init", *([str(folder)] if below else []))

    assert code == 0
    file = folder / "plimsoll.yaml"
    lines, tree = file.read_text("utf-8").splitlines(), yaml.safe_load(file.read_text("utf-8"))
    assert (len(lines), lines[0]) == (10, "# yaml-language-server: $schema=plimsoll.schema.json")
    assert all("#" in line for line in lines if not line.endswith(":"))
    assert tree == {
        "model": {"name": f"./{folder / 'model'}"},
        "data": {"files": [str(folder / "corpus")]},
        "cluster": {"workers": len(system_facts()["gpus"]) or 1},
        "train": {"global_batch": 32, "sequence_length": 64},
    }
    jsonschema.validate(tree, json.loads((folder / "plimsoll.schema.json").read_text("utf-8")))
    unused = ("metrics.csv", "config.json has no model_type", "broken/config.json cannot be read")
    assert all(part in said for part in unused)
    assert command(capsys, "check", str(file))[0] == 0


@pytest.mark.parametrize("every", [(), ("--all",)])
def test_names_several_candidates_and_takes_none(every: tuple[str, ...], capsys: Capture) -> None:
    model = FILES["model/config.json"]
    write(Path(), {f"{name}/config.json": model for name in ("one", "two")})
    write(Path(), {"train.jsonl": RECORDS, "notes.txt": "One.\n\nTwo.\n"})

    _, said = command(capsys, "init", *every)

    assert "Fill in: model.name: one of ./one, ./two" in said
    assert "data.files: one or more of notes.txt (text), train.jsonl (JSON lines, text)" in said
    code, said = command(capsys, "check", "plimsoll.yaml")
    assert (code, "model" in said, "missing" in said) == (2, True, True)


@pytest.mark.thorough
@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_prints_the_commands_that_answer_its_question(name: str, capsys: Capture) -> None:
    _, said = command(capsys, "init", "--recipe", name, "my file.yaml")

    lines = Path("my file.yaml").read_text("utf-8").splitlines()
    commands = [line[len("# plimsoll ") :] for line in lines if line.startswith("# plimsoll ")]
    assert commands
    assert all(words in said for words in commands)
    code, answer = command(capsys, *shlex.split(commands[0]))
    assert (code, ": yes, about " in answer) == (0, True)


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_takes_the_model_and_data_of_the_folder(name: str, capsys: Capture) -> None:
    write(Path(), FILES | {"model/tokenizer.json": "{}"})

    command(capsys, "init", "--recipe", name)

    spec = load_spec(Path("plimsoll.yaml"))
    assert (spec.model.name, spec.data.files) == ("./model", ("corpus",))
    assert (spec.data.tokenizer, spec.cluster.device) == ("model/tokenizer.json", "cuda")


def test_refuses_two_sources_and_unknown_recipes(capsys: Capture) -> None:
    assert (
        "there is no recipe 'x'; the recipes are ch" in command(capsys, "init", "--recipe", "x")[1]
    )
    both = (2, "--all and --recipe exclude each other: give one")
    assert command(capsys, "init", "--all", "--recipe", "x") == both
