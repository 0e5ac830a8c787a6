"""`plimsoll trial` as a user runs it: alone, under torchrun, and with a wrong plan."""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from search_spaces.trial import Measured, Outcome, Refused, outcome_from_json
from tests.commands import run_command
from tests.workers.values import GLOBAL_BATCH, STEPS, a_plan, a_spec
from workers.local import trial_request

BIN = Path(sys.executable).parent
ROOT = Path(__file__).parent.parent.parent
SECONDS = 1700


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    spec = a_spec().model_dump(mode="json", exclude_defaults=True)
    (tmp_path / "my spec.yaml").write_text(yaml.safe_dump(spec))
    return tmp_path


def arguments(folder: Path, **knobs: Any) -> list[str]:
    path = folder / "plan.json"
    path.write_text(json.dumps(a_plan(**knobs).as_dict()))
    return ["trial", "my spec.yaml", "--plan", "plan.json", "--json"]


def run(folder: Path, command: list[str]) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
    }
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        environment.pop(name, None)
    return run_command(command, folder=folder, environment=environment, seconds=SECONDS)


def outcome_in(finished: subprocess.CompletedProcess[str]) -> Outcome:
    assert finished.returncode == 0, finished.stderr
    return outcome_from_json(json.loads(finished.stdout)["result"])


def test_a_rank_that_compiles_is_waited_for_as_one_that_writes_a_checkpoint() -> None:
    plain, compiled = a_plan(), a_plan(compile=True)
    cases = ((plain, False), (plain, True), (compiled, False))
    waits = [
        trial_request(plan, a_spec(), validation=validation).collective_seconds
        for plan, validation in cases
    ]

    assert waits == [60, 3600, 3600]  # seconds: a rank that hangs is seen soon


@pytest.mark.thorough
def test_alone_it_prints_the_outcome_and_nothing_else_on_stdout(folder: Path) -> None:
    outcome = outcome_in(run(folder, ["plimsoll", *arguments(folder, data=1)]))

    assert isinstance(outcome, Measured)
    assert len(outcome.losses) == STEPS


@pytest.mark.thorough
def test_a_validation_evaluates_and_saves(folder: Path) -> None:
    validation = run(
        folder, ["plimsoll", *arguments(folder, data=1, micro_batch=4), "--validation"]
    )
    outcome = outcome_in(validation)

    assert isinstance(outcome, Measured), outcome
    assert outcome.validation is not None
    assert outcome.validation.checkpoint_bytes > 0
    assert not list(folder.rglob("plimsoll-checkpoint*"))


Told = tuple[int, str, str]  # exit code, standard output and error


@pytest.fixture
def told(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Told]:
    """Runs the command in this process, which has imported everything."""
    from orchestrator.cli import main

    def run_it(world_size: int, **knobs: Any) -> Told:
        typed = arguments(folder, **knobs)
        monkeypatch.chdir(folder)
        monkeypatch.setenv("WORLD_SIZE", str(world_size))
        monkeypatch.setattr(sys, "argv", ["plimsoll", *typed])
        with pytest.raises(SystemExit) as ended:
            main(typed)
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out, said.err

    return run_it


def test_a_plan_of_more_ranks_is_a_sentence_with_the_command(told: Callable[..., Told]) -> None:
    code, out, err = told(1, zero_stage=3)

    assert code == 2
    assert out == ""
    (sentence,) = err.splitlines()
    said, _, command = sentence.partition("; use: ")
    assert said == "the plan needs 2 ranks, but 1 were started"
    assert command.startswith("torchrun ")


@pytest.mark.thorough
def test_that_command_runs_the_plan_in_its_ranks(folder: Path, told: Callable[..., Told]) -> None:
    _, _, err = told(1, zero_stage=3)
    command = err.partition("; use: ")[2].strip()
    outcome = outcome_in(run(folder, shlex.split(command)))
    assert isinstance(outcome, Measured)
    assert outcome.samples_per_second.value * outcome.step_seconds.value == pytest.approx(
        GLOBAL_BATCH
    )
    assert outcome.memory.anatomy.weights == pytest.approx(4 * 106_048 / 2)  # its half


def test_a_plan_that_a_rule_forbids_is_refused_by_name(told: Callable[..., Told]) -> None:
    code, out, _ = told(1, data=1, zero_stage=3)

    assert code == 0
    outcome = outcome_from_json(json.loads(out)["result"])
    assert isinstance(outcome, Refused)
    assert outcome.rule == "sharding_needs_ranks"
