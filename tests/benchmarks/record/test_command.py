"""`python -m benchmarks.record` on bad input: one sentence, exit code 2, and no Ray started."""

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
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    written = capsys.readouterr()
    assert not written.out
    assert "Traceback" not in written.err
    return written.err


@pytest.fixture(autouse=True)
def _spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(SPEC)


@pytest.mark.parametrize("option", ["--repeats", "--limit"])
def test_none_of_them_makes_no_recording(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert option in refused(capsys, "tiny.yaml", option, "0")


def test_a_table_of_something_else(capsys: pytest.CaptureFixture[str]) -> None:
    Path("prices.csv").write_text("a,b\n1,2\n")

    err = refused(capsys, "tiny.yaml", "--out", "prices.csv")

    assert err == "prices.csv is no recording: it has no columns ranking_sets and repeat\n"
    assert Path("prices.csv").read_text() == "a,b\n1,2\n"


def test_a_specification_of_something_else_beside_the_table(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("all.yaml").write_text(SPEC.replace("global_batch: 8", "global_batch: 16"))

    err = refused(capsys, "tiny.yaml", "--out", "all.csv")

    assert "all.yaml holds another specification, which differs in train" in err
    assert not Path("all.csv").exists()


def test_no_place_for_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    err = refused(capsys, "tiny.yaml", "--out", "tiny.yaml/all.csv")

    assert "tiny.yaml/all.csv cannot be written: File exists" in err


def test_no_plan_is_legal(capsys: pytest.CaptureFixture[str]) -> None:
    Path("tiny.yaml").write_text(f"{SPEC}space: {{tensor: [2]}}\n")

    assert "no plan is legal" in refused(capsys, "tiny.yaml")
    assert not Path("plimsoll-runs").exists()


def test_more_plans_than_anyone_records(capsys: pytest.CaptureFixture[str]) -> None:
    Path("tiny.yaml").write_text(
        f"{SPEC}space: {{bucket_mib: [1, 2], loader_workers: {list(range(60))}}}\n"
    )

    err = refused(capsys, "tiny.yaml")

    assert "plans, more than the 1,000 that are recorded without being asked for" in err
    assert "--limit N" in err
    assert not Path("plimsoll-runs").exists()
