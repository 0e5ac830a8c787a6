"""The same command as a Ray job: `ray job submit --working-dir . -- plimsoll tune ...`."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from orchestrator.study.reader import load_records
from search_spaces.spec.load import load_spec
from search_spaces.trial import Crashed, Measured
from tests.orchestrator.cluster import awkward_model
from tests.rigs.ray_head import BIN

SPEC = """
model: {{name: "awkward_model:make", config: {{raises: 2}}}}
cluster: {{device: cpu, workers: 2, memory_gib: 0.5}}
train: {{global_batch: 4, sequence_length: 8, precision: fp32}}
space: {{zero_stage: [0], checkpoint_ratio: [0.0], micro_batch: [1, 2]}}
objective: {{max_seconds: 0.5, interval: 0.2}}
validation: {{enabled: false}}
study: {{folder: {folder}/kept}}
"""

SUBMIT = ("job", "submit", "--working-dir", ".", "--")


@pytest.mark.thorough
def test_a_job_gives_the_same_result(tmp_path: Path, cluster: dict[str, str]) -> None:
    work = tmp_path / "work"
    work.mkdir()
    shutil.copy(awkward_model.__file__, work / "awkward_model.py")
    (work / "sweep.yaml").write_text(SPEC.format(folder=tmp_path))

    job = subprocess.run(
        [str(BIN / "ray"), *SUBMIT, "plimsoll", "tune", "sweep.yaml"],
        cwd=work,
        env=cluster,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )

    assert job.returncode == 0, job.stdout + job.stderr
    records = {
        record.plan.micro_batch: record.outcome
        for record in load_records(load_spec(work / "sweep.yaml"), "sweep")
    }
    assert isinstance(records[1], Measured)
    assert isinstance(records[2], Crashed)
    assert records[2].detail == "ValueError: rows of two are not for me at priority 0"
    _assert_readable(job.stdout)


def _assert_readable(log: str) -> None:
    assert "\x1b[?25" not in log  # no cursor play of a live view
    for words in ("trial 0 starts", "trial 0 ended", "rows of two", "sweep ended", "Best plans"):
        assert words in log
