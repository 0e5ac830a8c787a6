"""The wheel, installed alone into a fresh environment: plan and trial run from it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.absent import OPTIONAL
from tests.orchestrator.cli.test_without_extras import SPEC
from tests.workers.values import a_plan

ROOT = Path(__file__).parent.parent.parent
LISTED = (
    "import importlib.metadata as m, json; print(json.dumps(sorted(m.packages_distributions())))"
)


@pytest.mark.thorough
@pytest.mark.timeout(1500)
def test_plan_and_trial_run_from_the_base_alone(tmp_path: Path) -> None:
    python, site = tmp_path / "env" / "bin" / "python", tmp_path / "work"
    site.mkdir()
    pip = [str(python), "-m", "pip", "install", "--quiet", "--constraint", "constraints.txt"]
    done([sys.executable, "-m", "venv", str(tmp_path / "env")])
    done([sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(tmp_path), "."])
    (wheel,) = tmp_path.glob("plimsoll_tune-*.whl")
    done([*pip, "torch"])  # first and alone, as the Makefile does
    done([*pip, str(wheel)])

    assert not OPTIONAL & set(json.loads(done([str(python), "-c", LISTED])))

    plan = a_plan(micro_batch=1, accumulation=2, data=1, attention="eager")
    (site / "sweep.yaml").write_text(SPEC, encoding="utf-8")
    (site / "plan.json").write_text(json.dumps(plan.as_dict()), encoding="utf-8")
    plimsoll = str(python.with_name("plimsoll"))
    done([plimsoll, "plan", "sweep.yaml", "--gpu", "H100"], site)
    trial = done([plimsoll, "trial", "sweep.yaml", "--plan", "plan.json", "--json"], site)

    assert (site / "plimsoll-runs" / "sweep" / "plan.json").is_file()
    assert json.loads(trial)["result"]["kind"] == "measured"


def done(command: list[str], folder: Path = ROOT) -> str:
    """The output of a command that succeeds, in an environment without this checkout."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ended = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    return ended.stdout
