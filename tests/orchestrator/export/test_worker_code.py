"""Exported scripts contain the worker's own code, and no second version of it."""

import ast
import sys
from pathlib import Path
from typing import Any

import pytest

import workers.plain_torch
from orchestrator.export.formats import export_bundle
from tests.orchestrator.export.folders import taken_of
from tests.workers.values import a_plan

FILES = sorted(Path(workers.plain_torch.__file__).parent.glob("*.py"))
ZERO: dict[str, Any] = {"engine": "deepspeed", "zero_stage": 2}
STEEP = {"grad_clip": 1.0, "schedule": "cosine", "warmup_steps": 3, "total_steps": 9}
# per format: knobs, and functions that its script calls
SCRIPTS: list[tuple[str, dict[str, Any], set[str]]] = [
    ("torchrun", {}, {"replicate", "Update"}),
    ("torchrun", {"zero_stage": 3, "compile": True}, {"shard", "share_first_rank", "Clipping"}),
    ("torchrun", {"zero_stage": 3, "prefetch_blocks": 1}, {"shard", "prefetch"}),
    ("torchrun", {"zero_stage": 3, "data": 4, "micro_batch": 1, "reshard_ranks": 2}, {"shard"}),
    ("torchrun", {"data": 1, "precision": "fp16"}, {"make_scaler", "gradient_sync", "autocast"}),
    ("torchrun", {"precision": "bf16", "states": "bf16"}, {"hold_in_bf16", "cast_inputs"}),
    ("ray-train", {"checkpoint_ratio": 0.5}, {"replicate", "checkpoint_blocks", "make_scheduler"}),
    ("ray-train", ZERO, {"make_optimizer", "make_scheduler"}),
    ("deepspeed", ZERO | {"compile": True}, {"make_optimizer", "compile_blocks"}),
    ("accelerate", {"checkpoint_ratio": 0.5}, {"gradient_sync", "checkpoint_blocks"}),
    ("hf-trainer", {"checkpoint_ratio": 0.5}, {"checkpoint_blocks"}),
    ("hf-trainer", {"checkpoint_ratio": 1.0, "offloaded_blocks": 1}, {"checkpoint_blocks"}),
]


def definitions_in(text: str) -> dict[str, str]:
    """Returns the code of each function and class of a file by its name, in one form."""
    return {
        node.name: ast.dump(node)
        for node in ast.parse(text).body
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
    }


@pytest.mark.parametrize(("name", "knobs", "called"), SCRIPTS)
def test_what_a_script_wraps_with_is_the_workers_code(
    name: str, knobs: dict[str, Any], called: set[str]
) -> None:
    worker = {
        name: code for file in FILES for name, code in definitions_in(file.read_text()).items()
    }

    script = definitions_in(
        export_bundle(taken_of(a_plan(**knobs), **STEEP), name).files["train.py"]
    )

    shared = script.keys() & worker.keys()
    assert called <= shared
    assert {name: script[name] for name in shared} == {name: worker[name] for name in shared}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_shipped_code_needs_torch_alone(file: Path) -> None:
    """A script that contains it must not need Plimsoll, nor what the plan does not use."""
    modules = {
        name.partition(".")[0]
        for node in ast.parse(file.read_text()).body
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom) and node.module != "workers.plain_torch.slices"
            else []
        )
    }

    assert modules - sys.stdlib_module_names <= {"torch"}
