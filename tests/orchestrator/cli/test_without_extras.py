"""Commands of a base installation, in a process without optional packages."""

import json
import sys

import pytest

from tests.absent import OPTIONAL, environment_without
from tests.commands import run_command
from tests.workers.values import a_plan

pytestmark = pytest.mark.thorough

SPEC = """
model:
  name: llama-3.2-1b
  config:
    {hidden_size: 32, intermediate_size: 64, num_hidden_layers: 2, num_attention_heads: 2,
    num_key_value_heads: 2, head_dim: 16, vocab_size: 200}
cluster: {workers: 1, device: cpu, memory_gib: 1}
train: {global_batch: 2, sequence_length: 16, precision: fp32}
space: {micro_batch: [1], checkpoint_ratio: [0], attention: [eager]}
objective: {max_seconds: 0.2}
"""
COMMANDS = (
    ("--help",),
    ("init", "new.yaml"),
    ("schema",),
    ("models",),
    ("doctor",),
    ("check", "sweep.yaml"),
    ("plan", "sweep.yaml", "--gpu", "H100"),
    ("trial", "sweep.yaml", "--plan", "plan.json", "--json"),
)
NEEDS_THEM = (("tune", "sweep.yaml"), ("report", "sweep.yaml"))
SCRIPT = f"""
import contextlib, io, json, sys
from orchestrator.cli import main

ended = []
for words in {(*COMMANDS, *NEEDS_THEM)}:
    out, err = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main(words)
    except SystemExit as end:
        ended.append([words[0], end.code or 0, out.getvalue(), err.getvalue()])
print(json.dumps([ended, sorted(set(sys.modules) & {set(OPTIONAL)})]))
"""


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str, str]]:
    """Returns exit code, stdout and stderr of each command."""
    folder = tmp_path_factory.mktemp("base")
    (folder / "sweep.yaml").write_text(SPEC, encoding="utf-8")
    plan = a_plan(micro_batch=1, accumulation=2, data=1, attention="eager")
    (folder / "plan.json").write_text(json.dumps(plan.as_dict()), encoding="utf-8")
    process = run_command(
        [sys.executable, "-c", SCRIPT],
        folder=folder,
        environment=environment_without(OPTIONAL, tmp_path_factory.mktemp("site")),
        seconds=800,
    )
    assert process.returncode == 0, process.stderr
    commands, imported = json.loads(process.stdout.splitlines()[-1])
    assert imported == []
    return {name: (code, out, err) for name, code, out, err in commands}


@pytest.mark.parametrize("command", [words[0] for words in COMMANDS])
def test_runs_without_optional_packages(
    command: str, ended: dict[str, tuple[int, str, str]]
) -> None:
    code, out, err = ended[command]

    assert (code, out != "") == (0, True), err
    assert "Traceback" not in err


def test_a_trial_is_measured_without_optional_packages(
    ended: dict[str, tuple[int, str, str]],
) -> None:
    assert json.loads(ended["trial"][1])["result"]["kind"] == "measured"


@pytest.mark.parametrize("package", ["Ray", "Optuna", "MLflow", "psycopg", "DeepSpeed", "PEFT"])
def test_doctor_names_what_is_missing(package: str, ended: dict[str, tuple[int, str, str]]) -> None:
    words = " ".join(ended["doctor"][1].split())

    assert f"{package} is not installed; run `pip install" in words


@pytest.mark.parametrize("command", [words[0] for words in NEEDS_THEM])
def test_says_in_a_sentence_what_to_install(
    command: str, ended: dict[str, tuple[int, str, str]]
) -> None:
    code, _, err = ended[command]

    assert code == 2
    assert err.endswith("is not installed; run `pip install 'plimsoll-tune[ray]'`\n")
    assert err.count("\n") == 1
