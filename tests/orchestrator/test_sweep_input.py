"""`plimsoll tune` on invalid input: one sentence, exit code 2, and no Ray started."""

import errno
import json
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import yaml

from orchestrator.cli import main
from orchestrator.study.study import Study
from search_spaces.specification.load import load_spec
from tests.commands import run_command
from tests.orchestrator.records import make_space
from tests.orchestrator.study.values import run

TINY = {"name": "gpt2", "config": {"n_layer": 2, "n_embd": 64, "n_head": 2, "vocab_size": 100}}
# Runs each specification named on the command line, and writes what came of it as JSON. One
# process for many: importing torch, transformers and mlflow takes longer than all the rest.
SCRIPT = """
import contextlib, io, json, sys
from orchestrator.cli import main
for path in sys.argv[1:]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main(["tune", path, "--plain"])
        except SystemExit as ended:
            code = ended.code
    print(json.dumps([code, out.getvalue(), err.getvalue(), "ray" in sys.modules]))
"""


@dataclass(frozen=True, slots=True)
class Ended:
    """Result of `plimsoll tune`."""

    code: int
    out: str
    err: str
    ray: bool


def tuned(folder: Path, *names: str, seconds: float) -> dict[str, Ended]:
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    ran = run_command(
        [sys.executable, "-c", SCRIPT, *(f"{name}.yaml" for name in names)],
        folder=folder,
        environment={**environment, "HF_HUB_OFFLINE": "1"},
        seconds=seconds,
    )
    assert ran.returncode == 0, ran.stderr
    return {
        name: Ended(*json.loads(line))
        for name, line in zip(names, ran.stdout.splitlines(), strict=True)
    }


def write(folder: Path, name: str, **sections: object) -> None:
    spec = {
        "model": TINY,
        "train": {"global_batch": 8, "sequence_length": 32, "precision": "fp32"},
        "cluster": {"device": "cpu", "workers": 2},
        "study": {"folder": "runs"},
        "budget": {"trials": 1, "minutes": 1},
        **sections,
    }
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(spec), encoding="utf-8")


KEPT = "kept"  # a study that has a trial
# name: what is wrong, and the words that have to be said of it
FAULTS: dict[str, tuple[dict[str, object], tuple[str, ...]]] = {
    "missing-model": ({"model": "no-such-model"}, ("no-such-model",)),
    "missing-data": (
        {"data": {"files": ["nowhere.txt"]}},
        ("nowhere.txt", "is neither a file nor a folder here"),
    ),
    "study-nobody-answers": (
        {"study": {"storage": "postgresql://ann:hunter2@127.0.0.1:9/sweeps"}},
        ("study.storage postgresql://127.0.0.1:9/sweeps cannot be opened", "Connection refused"),
    ),
    "tracking-nobody-answers": (
        {"tracking": {"uri": "http://127.0.0.1:1"}},
        ("http://127.0.0.1:1", "does not answer"),
    ),
    "address-nobody-answers": (  # Ray would wait for it for minutes
        {"cluster": {"address": "127.0.0.1:1", "device": "cpu"}},
        ("cluster.address is 127.0.0.1:1: no Ray cluster answers there",),
    ),
    "study-of-another-job": (
        {
            "study": {"name": KEPT, "folder": "runs"},
            "train": {"global_batch": 4, "sequence_length": 32, "precision": "fp32"},
        },
        ("train.global_batch changed",),
    ),
}

AWAY = ("study-nobody-answers", "tracking-nobody-answers")  # and may be there later


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Creates a specification for each fault, and a study with measurements of another one."""
    folder = tmp_path_factory.mktemp("faults")
    for name, (sections, _) in FAULTS.items():
        write(folder, name, **sections)
    write(folder, "first", study={"name": KEPT, "folder": str(folder / "runs")})
    spec = load_spec(folder / "first.yaml")
    run(Study(spec, KEPT, make_space(spec)), 1)
    (folder / "runs" / KEPT / "spec.yaml").write_text("the first one's", encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def faults(folder: Path) -> dict[str, Ended]:
    return tuned(folder, *FAULTS, seconds=300)


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_told_before_ray_starts(
    name: str, folder: Path, faults: dict[str, Ended]
) -> None:
    ended = faults[name]

    assert ended.code == (75 if name in AWAY else 2)
    for words in FAULTS[name][1]:
        assert words in ended.err
    assert "Traceback" not in ended.err + ended.out
    assert "hunter2" not in ended.err + ended.out
    faulty_lines = [line for line in ended.err.splitlines() if line.strip()]
    assert len(faulty_lines) <= 2  # a sentence, or "1 fault" and the sentence
    assert not ended.ray
    kept = folder / "runs" / KEPT / "spec.yaml"  # as its trials were measured with
    assert kept.read_text(encoding="utf-8") == "the first one's"


@pytest.mark.thorough
@pytest.mark.slow
def test_more_workers_than_the_machine_has(tmp_path: Path) -> None:
    write(
        tmp_path,
        "many",
        cluster={"device": "cpu", "workers": 512},
        train={"global_batch": 512, "sequence_length": 32},
    )
    names = ["many"]
    if not torch.cuda.is_available():
        write(tmp_path, "cuda", cluster={"device": "cuda"})
        names.append("cuda")

    ended = tuned(tmp_path, *names, seconds=300)

    assert ended["many"].code == 2
    assert "cluster.workers is 512: the cluster has room for " in ended["many"].err
    if "cuda" in ended:
        assert ended["cuda"].code == 2
        assert "cluster.device is cuda, but no node" in ended["cuda"].err
    for end in ended.values():
        assert len(end.err.splitlines()) <= 2, end.err


@pytest.mark.slow
def test_a_folder_for_temporary_files_with_a_name_too_long_for_rays_sockets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, "deep", cluster={"workers": 1, "device": "cpu"})
    deep = tmp_path / ("a" * 100)
    deep.mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(deep))
    monkeypatch.setattr(tempfile, "tempdir", None)  # which Python asks the environment for once
    monkeypatch.delenv("RAY_ADDRESS", raising=False)

    with pytest.raises(SystemExit) as ended:
        main(["tune", "deep.yaml", "--plain"])

    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert len(said.splitlines()) == 1, said
    assert said.startswith("Ray does not start on this machine")
    assert f"set RAY_TMPDIR to a short path such as /tmp; it is {deep}" in said


def test_a_machine_on_which_ray_does_not_start_is_to_be_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ray says so on a machine where a process may open 40 files."""
    import ray

    def init(**_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    write(tmp_path, "sweep", cluster={"workers": 1, "device": "cpu"})
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ray, "init", init)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)

    with pytest.raises(SystemExit) as ended:
        main(["tune", "sweep.yaml", "--plain"])

    said = capsys.readouterr().err
    assert ended.value.code == os.EX_TEMPFAIL
    assert said.startswith("Ray does not start on this machine: [Errno 24] Too many open files")
