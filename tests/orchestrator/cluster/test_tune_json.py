"""`plimsoll tune --json --set`: a sweep whose result is one document, under real Ray."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from search_spaces.spec.load import load_spec
from tests.orchestrator.cluster.cli import plimsoll

SPEC = """
model: {name: gpt2, config: {n_layer: 2, n_embd: 64, n_head: 2, vocab_size: 100}}
cluster: {device: cpu, workers: 1, memory_gib: 0.5}
train: {global_batch: 4, sequence_length: 8, precision: fp32}
space: {checkpoint_ratio: [0.0], attention: [sdpa], micro_batch: [1, 2]}
objective: {max_seconds: 0.5}
budget: {trials: 2}
validation: {enabled: false}
"""
ROOT = str(Path(__file__).parents[3])  # the code of this checkout, wherever it is installed from
pytestmark = [pytest.mark.slow, pytest.mark.thorough]


def test_stdout_is_the_report_of_what_the_command_line_asked_for(tmp_path: Path) -> None:
    (tmp_path / "sweep.yaml").write_text(SPEC)
    changed = ("--set", "train.global_batch=8", "--set", "study.sampler=random")

    swept = plimsoll(
        "tune", "sweep.yaml", *changed, "--json", "--debug", folder=tmp_path, PYTHONPATH=ROOT
    )

    assert swept.returncode == 0, swept.stderr
    result = json.loads(swept.stdout)["result"]
    assert {trial["plan"]["micro_batch"] for trial in result["trials"]} == {1, 2}
    assert all(
        trial["plan"]["micro_batch"] * trial["plan"]["accumulation"] == 8
        for trial in result["trials"]
    )
    assert "Started a local Ray instance" in swept.stderr  # as --debug lets Ray say
    kept = load_spec(tmp_path / "plimsoll-runs" / "sweep" / "spec.yaml")
    assert (kept.train.global_batch, kept.study.sampler) == (8, "random")

    # the file alone is another job, which the study refuses
    refused = plimsoll("tune", "sweep.yaml", "--json", folder=tmp_path, PYTHONPATH=ROOT)

    assert (refused.returncode, refused.stdout) == (2, "")
    assert "train.global_batch changed" in refused.stderr
