"""`plimsoll trial`: plan files that it accepts or refuses."""

import json
from pathlib import Path

import pytest

from orchestrator.cli import main
from orchestrator.cli.trial import read_plan
from search_spaces.errors import UserError
from tests.plans import ddp_plan

KNOBS = ddp_plan().as_dict()


def test_reads_the_plan_that_as_dict_gives(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(KNOBS), encoding="utf-8")

    assert read_plan(path) == ddp_plan()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "plan.json cannot be read: No such file or directory"),
        (b"{", "plan.json is not JSON: .* in line 1, column 2"),
        (b"[1]", "plan.json is not a plan: must be an object of knobs"),
        (
            b"{}",
            "plan.json: not a plan: data is missing; zero_stage is missing; micro_batch is missing",
        ),
        (
            json.dumps(KNOBS | {"zero_stage": 4}).encode(),
            "not a plan: zero_stage is 4, must be one",
        ),
    ],
)
def test_refuses_what_is_no_plan(tmp_path: Path, content: bytes | None, words: str) -> None:
    path = tmp_path / "plan.json"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(UserError, match=words):
        read_plan(path)


def test_a_plan_for_another_number_of_ranks_is_refused_in_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec, plan = tmp_path / "demo.yaml", tmp_path / "plan.json"
    spec.write_text("model: gpt2\ntrain: {global_batch: 32}", encoding="utf-8")
    plan.write_text(json.dumps(KNOBS), encoding="utf-8")

    with pytest.raises(SystemExit) as caught:
        main(["trial", str(spec), "--plan", str(plan)])

    assert caught.value.code == 2
    written = capsys.readouterr()
    assert written.err.startswith("the plan needs 2 ranks, but 1 were started; use: torchrun")
    assert not written.out
