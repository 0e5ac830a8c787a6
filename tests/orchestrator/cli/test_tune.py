"""`plimsoll tune` speaks before it imports anything that takes long."""

import subprocess
import sys
from pathlib import Path

from orchestrator.cli.exit_codes import ExitCode

HEAVY = {"torch", "transformers", "ray", "optuna", "mlflow"}


def test_its_first_word_comes_before_heavy_imports(tmp_path: Path) -> None:
    file = tmp_path / "sweep.yaml"
    file.write_text(
        "{model: {name: no-such-folder}, train: {global_batch: 8}, cluster: {workers: 2}}"
    )
    command = [sys.executable, "-X", "importtime", "-m", "plimsoll", "tune", str(file)]

    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as running:
        log, _ = running.communicate()

    before, _, after = log.partition("[0:00:00] reading the model\n")
    assert not HEAVY & imported(before)
    assert "optuna" in imported(after)
    assert "no-such-folder" in after
    assert running.returncode == ExitCode.USER_ERROR


def imported(log: str) -> set[str]:
    """Returns the modules that were imported, as the interpreter logs them."""
    return {line.rpartition("|")[2].strip() for line in log.splitlines()}
