"""A whole sweep on PostgreSQL, whose server goes down and comes back for the next driver."""

import shutil
import subprocess
from pathlib import Path

import pytest

from orchestrator.cli.exit_codes import ExitCode
from orchestrator.study.reader import load_records
from search_spaces.specification.load import load_spec
from tests.orchestrator.cluster import awkward_model
from tests.orchestrator.cluster.cli import PLIMSOLL
from tests.orchestrator.cluster.conftest import ROOT
from tests.rigs.postgres import Server
from tests.rigs.ray_head import environment

SPEC = """
model: {{name: "awkward_model:make", config: {{pass_seconds: 0.01}}}}
cluster: {{device: cpu, workers: 2, memory_gib: 0.5}}
train: {{global_batch: 128, sequence_length: 8, precision: fp32}}
space: {{zero_stage: [0], checkpoint_ratio: [0.0], micro_batch: [1, 64]}}
objective: {{max_seconds: 2, interval: 0.0001, max_steps: 100000}}
validation: {{enabled: false}}
study: {{wait_minutes: 0.05, storage: "{storage}"}}
"""


def tune(folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [PLIMSOLL, "tune", "sweep.yaml", "--plain"],
        cwd=folder,
        env=environment(folder, PYTHONPATH=str(ROOT)),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.thorough
def test_a_sweep_whose_database_stays_away_ends_and_goes_on_later(
    postgres: Server, tmp_path: Path
) -> None:
    shutil.copy(awkward_model.__file__, tmp_path / "awkward_model.py")
    asked = tmp_path / "sweep.yaml"
    asked.write_text(SPEC.format(storage=postgres.new_database()))
    sweep = tune(tmp_path)
    assert sweep.stdout is not None
    lines: list[str] = []
    with sweep.stdout:
        for line in sweep.stdout:
            lines.append(line)
            if "trial 1 starts" in line:
                postgres.stop()
    said = "".join(lines)
    assert sweep.wait(600) == ExitCode.TRY_AGAIN, said
    assert "the same command resumes the sweep" in lines[-1]
    assert "Traceback" not in said

    postgres.start()
    again = tune(tmp_path)
    said = again.communicate(timeout=600)[0]
    assert again.returncode == 0, said
    records = load_records(load_spec(asked), "sweep")
    assert [record.plan.micro_batch for record in records] == [1, 64]
    assert [record.number for record in records] == [0, 2]  # the lost one ran again
