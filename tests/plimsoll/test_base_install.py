"""The wheel, installed alone into a fresh environment, and the source distribution."""

import json
import os
import subprocess
import sys
import tarfile
import tomllib
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


@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_the_source_distribution_has_all_tests_and_its_wheel_the_same_version(
    tmp_path: Path,
) -> None:
    uv = str(Path(sys.executable).with_name("uv"))
    done([uv, "build", "--quiet", "--out-dir", str(tmp_path)])
    (packed,) = tmp_path.glob("plimsoll_tune-*.tar.gz")
    (wheel,) = tmp_path.glob("plimsoll_tune-*.whl")
    tracked = done(["git", "ls-files", "tests"]).split()
    with tarfile.open(packed) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}

    assert set(tracked) <= names
    version = packed.name.removeprefix("plimsoll_tune-").removesuffix(".tar.gz")
    assert wheel.name.split("-")[1] == version
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    assert version.startswith(tools["setuptools_scm"]["fallback_version"])


def done(command: list[str], folder: Path = ROOT) -> str:
    """The output of a command that succeeds, in an environment without this checkout."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ended = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    return ended.stdout
