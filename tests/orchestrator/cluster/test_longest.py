"""A sweep for the longest sequence: real trials, whose memory decides which length fits."""

import json
import sys
from pathlib import Path

import pytest

from tests.commands import run_command

SPEC = """
model:
  name: llama-3.2-1b
  config: {hidden_size: 32, intermediate_size: 64, num_hidden_layers: 2, vocab_size: 100000,
    num_attention_heads: 2, num_key_value_heads: 2, head_dim: 16}
cluster: {device: cpu, workers: 1, memory_gib: 1.3}
train: {global_batch: 1, sequence_length: 512}
objective: {metric: sequence_length, min_steps: 6, max_steps: 6}
validation: {enabled: false, repeats: 0}
budget: {trials: 2, minutes: 30}
tracking: {enabled: false}
space: {loss: [whole], attention: [sdpa], checkpoint_ratio: [0.0], precision: [fp32],
  compile: [false]}
"""


@pytest.mark.thorough
def test_it_tunes_the_longest_length_whose_trial_fits(tmp_path: Path) -> None:
    (tmp_path / "long.yaml").write_text(SPEC)
    command = [sys.executable, "-m", "plimsoll", "tune", "long.yaml", "--json"]
    ran = run_command(command, folder=tmp_path, seconds=1500)

    assert ran.returncode == 0, ran.stderr
    told = json.loads(ran.stdout)["result"]
    tokens = told["sequence_length"]
    assert told["study"] == f"long-{tokens}"
    assert told["answer"]["outcome"] == "measured"
    studies = {
        int(folder.name.partition("-")[2]): folder
        for folder in (tmp_path / "plimsoll-runs").iterdir()
        if folder.name.startswith("long-")
    }
    shortest_too_long = min(length for length in studies if length > tokens)
    assert shortest_too_long <= 1.25 * tokens + 64

    command[3:] = ["report", str(studies[shortest_too_long]), "--json"]
    report = json.loads(run_command(command, folder=tmp_path, seconds=300).stdout)["result"]
    assert report["answer"] is None
    assert report["trials"]
