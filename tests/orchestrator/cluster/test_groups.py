"""Two trials at a time, each on its own workers; then the validation, alone."""

from __future__ import annotations

import subprocess
from itertools import combinations
from pathlib import Path

import pytest

from orchestrator.core.records import Record
from orchestrator.study.reader import load_records, load_validations
from search_spaces.spec.load import load_spec
from search_spaces.trial import Measured
from tests.orchestrator.cluster.cli import plimsoll

pytestmark = pytest.mark.thorough

SPEC = """
model:
  name: gpt2
  config: {n_layer: 1, n_embd: 32, n_head: 2, vocab_size: 64, n_positions: 16}
cluster: {device: cpu, workers: 1, groups: 2, share_nodes: true, memory_gib: 0.5}
train: {global_batch: 16, sequence_length: 16, precision: fp32}
space: {micro_batch: [1, 2, 4, 8], checkpoint_ratio: [0.0, 1.0], attention: [sdpa]}
objective: {max_seconds: 3, interval: 0.0001, max_steps: 100000, racing: false}
budget: {trials: 6}
validation: {slower: 0.9}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("groups")
    (made / "two.yaml").write_text(SPEC)
    return made


@pytest.fixture(scope="module")
def sweep(folder: Path) -> subprocess.CompletedProcess[str]:
    swept = plimsoll("tune", "two.yaml", "--plain", folder=folder)
    assert swept.returncode == 0, swept.stdout + swept.stderr
    return swept


@pytest.fixture(scope="module")
def kept(sweep: object, folder: Path) -> tuple[tuple[Record, ...], tuple[Record, ...]]:
    """Records of trials and validations."""
    spec = load_spec(folder / "two.yaml")
    storage = f"sqlite:///{folder}/plimsoll-runs/two/study.db"
    spec = spec.model_copy(update={"study": spec.study.model_copy(update={"storage": storage})})
    return load_records(spec, "two"), load_validations(spec, "two")


def overlap(one: Record, other: Record) -> bool:
    return one.started_at < other.ended_at and other.started_at < one.ended_at


def test_two_trials_run_at_a_time_and_never_three(
    kept: tuple[tuple[Record, ...], tuple[Record, ...]],
) -> None:
    trials, _ = kept

    assert len({record.plan for record in trials}) == 6
    assert all(isinstance(record.outcome, Measured) for record in trials)
    assert sum(overlap(*pair) for pair in combinations(trials, 2)) >= 3
    for three in combinations(trials, 3):
        assert not all(overlap(*pair) for pair in combinations(three, 2))


def test_the_validation_has_the_machine_to_itself(
    kept: tuple[tuple[Record, ...], tuple[Record, ...]],
) -> None:
    trials, (validation,) = kept

    assert isinstance(validation.outcome, Measured)
    assert validation.started_at >= max(record.ended_at for record in trials)
