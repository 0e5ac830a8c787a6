"""`--json`: one document on stdout and nothing else, on every command."""

import inspect
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from orchestrator.cli import main
from orchestrator.cli.app import app
from orchestrator.cli.result import JSON_VERSION
from tests.orchestrator.cli.studies import a_plan, a_study
from tests.outcomes import make_measured, make_oom

TRIED = (
    (a_plan(), make_measured(20.0, 0.3)),
    (a_plan(micro_batch=4, batching="packed"), make_measured(40.0, 0.5)),
    (a_plan(micro_batch=8, batching="packed"), make_oom(1.3)),
)
WITHOUT = {"init", "submit", "ui", "schema", "mcp"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a study."""
    made = tmp_path_factory.mktemp("json")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(made)
        a_study(TRIED)
    return made


@pytest.fixture(autouse=True)
def _here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder / "config"))


def result(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> Any:
    """Returns the result of the document, the only output on stdout."""
    with pytest.raises(SystemExit) as caught:
        main([*arguments, "--json"])
    out, err = capsys.readouterr()
    assert int(caught.value.code or 0) == code, err
    document = json.loads(out)
    assert set(document) == {"kind", "version", "result"}
    assert document["kind"] == arguments[0]
    assert document["version"] == JSON_VERSION
    jsonschema.validate(document, closed(printed_schema(capsys, document["kind"])))
    return document["result"]


def printed_schema(capsys: pytest.CaptureFixture[str], kind: str) -> Any:
    with pytest.raises(SystemExit):
        main(["schema", "--of", kind])
    return json.loads(capsys.readouterr().out)


def closed(schema: Any) -> Any:
    """Returns a schema that permits no field that it does not describe."""
    if isinstance(schema, list):
        return [closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    ends = {"additionalProperties": False} if "properties" in schema else {}
    return ends | {key: closed(value) for key, value in schema.items()}


def test_every_command_that_has_a_result_takes_it() -> None:
    commands = {
        info.callback.__name__: inspect.signature(info.callback).parameters
        for info in app.registered_commands
        if info.callback is not None
    }

    assert {name for name, options in commands.items() if "as_json" not in options} == WITHOUT
    assert all("debug" in options for options in commands.values())


def test_check(capsys: pytest.CaptureFixture[str]) -> None:
    told = result(capsys, "check", "demo.yaml", "--set", "train.global_batch=32")

    assert told["study"] == "demo"
    assert told["legal_plans"] > 0
    assert told["searched"]["zero_stage"] == [0, 3]
    assert told["effective_specification"]["train"]["global_batch"] == 32


def test_plan_leaves_no_file(capsys: pytest.CaptureFixture[str]) -> None:
    told = result(capsys, "plan", "demo.yaml", "--top", "2")

    assert len(told["recommendation"]["best"]) == 2
    assert not Path("plimsoll-runs/demo/plan.json").exists()


def test_report(capsys: pytest.CaptureFixture[str]) -> None:
    told = result(capsys, "report", "demo")

    assert told["answer"]["trial"] == 1
    assert told["answer"]["samples_per_second"]["value"] == 40.0
    assert told["answer"]["plan"] == a_plan(micro_batch=4, batching="packed").as_dict()
    assert [trial["outcome"] for trial in told["trials"]] == [
        *("measured", "measured", "out_of_memory")
    ]
    assert told["trials"][2]["wanted_bytes"] > told["trials"][2]["limit_bytes"]
    assert told["outcomes"] == {"measured": 2, "out_of_memory": 1}
    assert result(capsys, "report", "demo.yaml", "--out", "report.json") == told
    assert json.loads(Path("report.json").read_text())["result"] == told


@pytest.mark.parametrize(
    ("options", "kind"),
    [((), "best"), (("--trial", "2"), "trial"), (("--plan", "checkpoint_ratio=0.5"), "untried")],
)
def test_explain(options: tuple[str, ...], kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert result(capsys, "explain", *options)["explains"] == kind


def test_export(capsys: pytest.CaptureFixture[str]) -> None:
    told = result(capsys, "export", "--trial", "0", "--out", "out")

    assert (told["trial"], told["format"], told["folder"]) == (0, "torchrun", "out")
    assert set(told["files"]) == {file.name for file in Path("out").iterdir()}


def test_models(capsys: pytest.CaptureFixture[str]) -> None:
    assert {"gpt2", "llama-3.2-1b"} <= {model["name"] for model in result(capsys, "models")}


def test_doctor(capsys: pytest.CaptureFixture[str]) -> None:
    told = result(capsys, "doctor")

    assert told["packages"]["torch"]
    assert {"name", "serves", "lack"} == set(told["features"][0])


def test_a_user_error_leaves_stdout_empty(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["report", "nobody", "--json"])

    out, err = capsys.readouterr()
    assert (caught.value.code, out) == (2, "")
    assert "neither a specification nor a study" in err


def test_what_libraries_and_children_print_goes_to_stderr() -> None:
    script = """
import logging, os, subprocess, sys
from orchestrator.cli.result import reserved_stdout
held = logging.StreamHandler(sys.stdout)
print("before")
with reserved_stdout() as stdout:
    print("print")
    os.write(1, b"library\\n")
    subprocess.run(["echo", "child"])
    held.stream.write("handler\\n")  # not flushed
    stdout.write("document\\n")
print("after")
"""
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=600
    )

    assert ended.stdout.split() == ["before", "document", "after"]
    assert sorted(ended.stderr.split()) == ["child", "handler", "library", "print"]


def test_check_says_what_was_understood_of_a_json_array(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    records = [{"instruction": f"say {i}", "input": "", "output": "so " * i} for i in range(60)]
    (tmp_path / "train.json").write_text(json.dumps(records, indent=2))
    monkeypatch.setenv("CORPUS", str(tmp_path))
    spec = tmp_path / "sweep.yaml"
    spec.write_text(
        "model: {name: gpt2, config: {num_hidden_layers: 2, hidden_size: 64,"
        " num_attention_heads: 4, vocab_size: 512}}\n"
        "data: {files: ['${CORPUS}/train.json']}\n"
        "cluster: {device: cpu, workers: 1, memory_gib: 2}\n"
        "train: {global_batch: 8, sequence_length: 64, precision: fp32}\n"
    )

    understood = result(capsys, "check", str(spec))["understood"]

    data, samples, *_ = (words for _, words in understood["rows"])
    assert data == "train.json: JSON array, instruction + input + output"
    assert samples.startswith("60 samples; tokens: shortest ")
    assert understood["data"]["reading"]["forms"] == ["JSON array"]
    assert understood["data"]["histogram"][-1]["longest"] > understood["data"]["median"]
    monkeypatch.delenv("CORPUS")
    with pytest.raises(SystemExit):
        main(["check", str(spec)])
    assert "data.files[0]: the environment variable CORPUS is not set" in capsys.readouterr().err
