"""`plimsoll explain` as a user runs it: a real study, a real trace, every error."""

import json
from pathlib import Path

import pytest

from orchestrator.cli import main
from tests.orchestrator.cli.studies import a_plan, a_study
from tests.outcomes import make_measured, make_oom

OUTCOMES = (
    (a_plan(), make_measured(20.0, 0.3)),
    (a_plan(micro_batch=4, batching="packed"), make_measured(40.0, 0.5)),
    (a_plan(micro_batch=8, batching="packed"), make_oom(1.3)),
    (a_plan(micro_batch=8, batching="packed", zero_stage=3), make_measured(35.0, 0.9)),
)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of footprints, shared by the tests of this module."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def here(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory, empty and without the user's own files."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """Returns the exit code, and the words of stdout and stderr."""
    with pytest.raises(SystemExit) as caught:
        main(["explain", *map(str, arguments)])
    said = capsys.readouterr()
    return int(caught.value.code or 0), " ".join(said.out.split()), " ".join(said.err.split())


def test_why_the_winner_won(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = a_study(OUTCOMES)
    code, out, err = run(capsys, spec, "--out", "out/won.json")
    told = json.loads((here / "out" / "won.json").read_text())["result"]

    assert (code, err) == (0, "")
    assert "trial 1 is best" in out
    assert "the best plan has 2.00 x (1.96 to 2.04) its speed (measured)" in out
    assert "forecast: " in out
    assert out.endswith("written: out/won.json")
    path = [[change["knob"] for change in step["changes"]] for step in told["baseline"]["levers"]]
    assert sorted(path) == [["batching"], ["micro_batch"]]
    assert told["note"] == ""


@pytest.mark.cases_by_default(2)
@pytest.mark.parametrize(
    ("knobs", "words"),
    [
        (["zero_stage=3", "micro_batch=8"], "it was tried, as trial 3"),
        (["micro_batch=3"], "global batch of 16 is not a multiple of micro_batch 3 x data 2 = 6"),
        (["micro_batch=8", "batching=padded"], "forecast"),
        (["batching=grouped"], "space.batching does not include grouped, only padded, packed"),
        (["checkpoint_ratio=0.5"], "after 4 trials: the budget of 3 trials is used up"),
        (["tried.json"], "it was tried, as trial 3"),
        (["other_batch.json"], "is 32, but train.global_batch is 16"),
    ],
)
def test_why_a_plan_was_not_tried(
    knobs: list[str], words: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = a_study(OUTCOMES)
    tried = OUTCOMES[3][0].as_dict()
    for name, plan in {"tried": tried, "other_batch": tried | {"accumulation": 2}}.items():
        (here / f"{name}.json").write_text(json.dumps(plan))
    code, out, err = run(capsys, spec, "--plan", *knobs)

    assert (code, err) == (0, "")
    assert words in out


def test_a_model_that_is_gone_leaves_what_was_measured(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = a_study(OUTCOMES)
    text = spec.read_text(encoding="utf-8")
    spec.write_text(text.replace("llama-3.2-1b", "gone/away"), encoding="utf-8")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    won, trial = run(capsys, spec), run(capsys, spec, "--trial", 2)
    asked = run(capsys, spec, "--plan", "zero_stage=3")

    assert (won[0], trial[0], asked[0]) == (0, 0, 2)
    assert "note: there are no forecasts" in won[1]
    assert "2.00 x" in won[1]
    assert "wanted 130 % of the limit" in trial[1]
    assert "gone/away" in asked[2]


def test_without_an_answer_there_is_nothing_to_explain(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = a_study([(a_plan(), make_oom(1.3))])

    code, out, err = run(capsys, spec)
    trial = run(capsys, spec, "--trial", 0)

    assert (code, out) == (1, "")
    assert "no plan is feasible; the closest is trial 0" in err
    assert trial[0] == 0
    empty = run(capsys, a_study([], "empty"))
    assert empty == (2, "", "the study empty has no finished trial yet")


@pytest.mark.cases_by_default(4)
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--trial", "9"], "study demo has no finished trial 9: its trials are 0 to 3"),
        (["--trial", "1", "--plan", "zero_stage=3"], "exclude each other: give one"),
        (["--plan", "zero=3"], "--plan 'zero' is not a knob; the knobs are"),
        (["more.yaml"], "one study is explained, but demo.yaml and more.yaml were named"),
        (["zero_stage=3"], "give a plan with --plan KNOB=VALUE"),
    ],
)
def test_what_a_user_can_get_wrong(
    arguments: list[str], words: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = a_study(OUTCOMES)
    before = sorted(here.rglob("*"))
    code, _, err = run(capsys, spec, *arguments)

    assert code == 2
    assert words in err
    assert "Traceback" not in err
    assert [path for path in sorted(here.rglob("*")) if path.suffix == ".json"] == []
    assert set(before) <= set(here.rglob("*"))
