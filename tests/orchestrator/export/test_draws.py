"""Exported scripts draw the dropout masks that were measured."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.export.bundle import write_bundle
from orchestrator.export.formats import export_bundle
from search_spaces.settings.rank_layout import draw_seed
from search_spaces.trial import Measured, TrialRequest
from tests.orchestrator.export.folders import STEPS, run_folder, taken_of
from tests.workers.launch import Group, Groups
from tests.workers.parallel.test_draws import SAME, spec_with
from tests.workers.values import a_plan

ZERO: dict[str, Any] = {"engine": "deepspeed", "zero_stage": 2}


@pytest.mark.parametrize(
    ("name", "knobs", "rank"),
    [
        ("torchrun", {}, "rank"),
        ("accelerate", {}, "rank"),
        ("ray-train", {}, "rank"),
        ("deepspeed", ZERO, "rank"),
        ("hf-trainer", {}, "args.process_index"),
    ],
)
def test_a_script_seeds_its_ranks_as_workers_do(
    name: str, knobs: dict[str, Any], rank: str
) -> None:
    script = export_bundle(taken_of(a_plan(**knobs), seed=7), name).files["train.py"]

    (formula,) = re.findall(r"torch\.manual_seed\((.+ % 2\*\*32)\)", script)
    assert eval(formula.replace(rank, "3")) == draw_seed(7, 3)


@pytest.fixture
def pair() -> Iterator[Group]:
    """Two ranks of their own, which the tests of workers have elsewhere."""
    groups = Groups()
    yield groups.of(2)
    groups.stop()


@pytest.mark.slow
@pytest.mark.thorough
def test_trainer_draws_what_was_measured(pair: Group, tmp_path: Path) -> None:
    spec, plan = spec_with(seed=3), a_plan()
    outcome = pair.run(TrialRequest(number=0, plan=plan, spec=spec))
    assert isinstance(outcome, Measured), outcome
    source = taken_of(plan, spec=spec)
    write_bundle(export_bundle(source, "hf-trainer"), source, tmp_path / "out")

    lines = run_folder(tmp_path / "out", steps=1 + STEPS)

    losses = [line["loss"] for line in lines][1:]  # a trial keeps those after its worst step
    assert losses == pytest.approx(outcome.losses[:STEPS], rel=SAME)
