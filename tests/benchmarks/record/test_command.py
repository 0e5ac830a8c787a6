"""`python -m benchmarks.record` on bad input: one sentence, exit code 2 before Ray starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.record.__main__ import main

SPEC = """
model: {name: gpt2, config: {n_layer: 2, n_embd: 64, n_head: 2, vocab_size: 100}}
cluster: {device: cpu, workers: 1}
train: {global_batch: 8, sequence_length: 16}
"""


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Returns what the command says, which must be an error of the user's."""
    assert main(arguments) == 2
    written = capsys.readouterr()
    assert not written.out
    return written.err


@pytest.fixture(autouse=True)
def _spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(SPEC)


def test_a_table_of_something_else(capsys: pytest.CaptureFixture[str]) -> None:
    Path("prices.csv").write_text("a,b\n1,2\n")

    err = refused(capsys, "tiny.yaml", "--out", "prices.csv")

    assert err == "prices.csv is no recording: it has no columns ranking_sets and repeat\n"
    assert Path("prices.csv").read_text() == "a,b\n1,2\n"


def test_no_place_for_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    err = refused(capsys, "tiny.yaml", "--out", "tiny.yaml/all.csv")

    assert "tiny.yaml/all.csv cannot be written: File exists" in err
