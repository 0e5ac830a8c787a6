"""Exported scripts draw the dropout masks that were measured."""

from __future__ import annotations

import re
from typing import Any

import pytest

from orchestrator.export.formats import export_bundle
from search_spaces.settings.rank_layout import draw_seed
from tests.orchestrator.export.folders import taken_of
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
