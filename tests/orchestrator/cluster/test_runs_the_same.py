"""A plan runs the same under Ray, under torchrun and alone, to the last digit of each loss.

One real sweep measures every plan, then the command line runs some of them once more without Ray.
"""

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from orchestrator.core.records import Record
from search_spaces.plan import Plan
from search_spaces.trial import Measured, outcome_from_json
from tests.commands import run_command
from tests.orchestrator.cluster.cli import PLIMSOLL, plimsoll, records_in, write_sweep
from tests.rigs.ray_head import environment

pytestmark = pytest.mark.thorough

STEPS = 8
# Plans of one rank come last with this seed: another group of workers takes seconds to start.
SPACE = {
    "engine": ["torch", "deepspeed"],
    "pipeline": [1, 2],
    "data": [1, 2],
    "zero_stage": [0, 2, 3],
    "micro_batch": [2],
    "checkpoint_ratio": [0.5],
}
PAIRS: Mapping[str, Mapping[str, Any]] = {
    "deepspeed stage 2": {"engine": "deepspeed", "zero_stage": 2, "data": 2, "pipeline": 1},
    "fsdp2 with recomputation": {"engine": "torch", "zero_stage": 3, "data": 2, "pipeline": 1},
    "pipeline": {"engine": "torch", "zero_stage": 0, "data": 1, "pipeline": 2},
}
ONE = {"engine": "torch", "zero_stage": 0, "data": 1, "pipeline": 1}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("same")
    write_sweep(
        made / "same.yaml",
        space=SPACE,
        objective={"max_steps": STEPS, "interval": 1e-9},
        study={"sampler": "random", "seed": 14},
    )
    return made


@pytest.fixture(scope="module")
def records(folder: Path) -> tuple[Record, ...]:
    """Records of a sweep through the whole space."""
    sweep = plimsoll("tune", "same.yaml", folder=folder)
    assert sweep.returncode == 0, sweep.stdout + sweep.stderr
    (folder / "log").write_text(sweep.stdout)
    return records_in(folder, "same")


def under_ray(records: tuple[Record, ...], knobs: Mapping[str, Any]) -> tuple[Plan, Measured]:
    """Returns the plan with these knobs, and its measurement."""
    (record,) = (
        record
        for record in records
        if all(getattr(record.plan, name) == value for name, value in knobs.items())
    )
    assert isinstance(record.outcome, Measured), record.outcome
    assert record.plan.checkpoint_ratio == 0.5
    return record.plan, record.outcome


def by_the_command(folder: Path, plan: Plan) -> Measured:
    """Runs the plan with `plimsoll trial`, on as many ranks as it needs."""
    (folder / "plan.json").write_text(json.dumps(plan.as_dict()))
    command = ["plimsoll", "trial", "same.yaml", "--plan", "plan.json", "--json"]
    if plan.world_size > 1:
        ranks = str(plan.world_size)
        command = ["torchrun", "--nproc-per-node", ranks, "--no-python", *command]
    path = f"{Path(PLIMSOLL).parent}{os.pathsep}{os.environ['PATH']}"
    environ = environment(folder, PATH=path, OMP_NUM_THREADS="1")
    program = shutil.which(command[0], path=path)
    assert program is not None
    finished = run_command([program, *command[1:]], folder=folder, environment=environ, seconds=800)
    assert finished.returncode == 0, finished.stderr
    outcome = outcome_from_json(json.loads(finished.stdout)["result"])
    assert isinstance(outcome, Measured), outcome
    return outcome


@pytest.mark.parametrize("name", PAIRS)
def test_two_ranks_of_torchrun_lose_what_workers_of_ray_lose(
    records: tuple[Record, ...], folder: Path, name: str
) -> None:
    plan, swept = under_ray(records, PAIRS[name])

    alone = by_the_command(folder, plan)

    assert len(swept.losses) == STEPS
    assert alone.losses == swept.losses


def test_every_plan_of_the_sweep_was_measured_and_loses_the_same(
    records: tuple[Record, ...],
) -> None:
    """Each sums in another order, so the losses agree within fp32's digits."""
    _, reference = under_ray(records, ONE)

    assert len(records) == 9
    for record in records:
        assert isinstance(record.outcome, Measured), record
        assert record.outcome.losses == pytest.approx(reference.losses, rel=2e-5), record.plan
