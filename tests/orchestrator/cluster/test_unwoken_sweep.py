"""A sweep over a backend with NCCL's manners: a rank that fails alone costs its peers nothing more.

Every process of Ray's that imports torch has the backend in the place of gloo.
"""

import shutil
from pathlib import Path

import pytest

from search_spaces.trial import Crashed, Measured, OutOfMemory
from tests.orchestrator.cluster import awkward_model
from tests.orchestrator.cluster.cli import plimsoll, records_in
from tests.rigs import stubborn

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).parents[3]
SITE = Path(stubborn.__file__).with_name("stubborn_site")
STRANDS, TOO_LARGE = 4, 16
DEADLINE_SECONDS = 300
SPEC = f"""
model: {{name: "awkward_model:make", config: {{strands: {STRANDS}, too_large: {TOO_LARGE}}}}}
cluster: {{device: cpu, workers: 2, memory_gib: 0.5}}
train: {{global_batch: 32, sequence_length: 8, precision: fp32, learning_rate: 0.01}}
space: {{zero_stage: [0], checkpoint_ratio: [0.0], micro_batch: [1, 2, {STRANDS}, 8, {TOO_LARGE}]}}
objective: {{max_seconds: 2, interval: 0.2, max_steps: 12}}
budget: {{trials: 5, trial_seconds: {DEADLINE_SECONDS}}}
validation: {{enabled: false}}
study: {{sampler: random}}
tracking: {{enabled: false}}
"""


def test_peers_are_woken_and_those_that_cannot_be_are_replaced(tmp_path: Path) -> None:
    shutil.copy(awkward_model.__file__, tmp_path)
    (tmp_path / "sweep.yaml").write_text(SPEC)

    ran = plimsoll(
        *("tune", "sweep.yaml", "--plain"),
        folder=tmp_path,
        seconds=800,
        PYTHONPATH=f"{ROOT}:{SITE}",
        OMP_NUM_THREADS="1",
    )

    assert ran.returncode == 0, ran.stdout + ran.stderr
    by_rows = {record.plan.micro_batch: record for record in records_in(tmp_path)}
    assert all(isinstance(by_rows[rows].outcome, Measured) for rows in (1, 2, 8))
    too_large, stranded = by_rows[TOO_LARGE].outcome, by_rows[STRANDS].outcome
    assert isinstance(too_large, OutOfMemory)
    assert too_large.rank == 1
    # what the failed rank announced counts, not that its peer never answered
    assert isinstance(stranded, Crashed)
    assert (stranded.cause, stranded.rank) == ("exception", 0)
    assert stranded.detail == f"ValueError: alone over {stubborn.BACKEND}"
