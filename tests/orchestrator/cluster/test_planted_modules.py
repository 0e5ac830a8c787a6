"""A sweep runs no module of the current directory that its specification does not name."""

import sys
from pathlib import Path

import pytest

from orchestrator.cluster.ray_private import named_code_alone
from search_spaces.errors import ModelError
from tests.orchestrator.cluster.cli import plimsoll, write_sweep
from workers.models import isolation
from workers.models.facts import describe_to_json
from workers.models.isolation import _Forks, run_apart

ROOT = Path(__file__).parents[3]
# what libraries import if it is there, and modules of the standard library
NAMES = (
    *("boto3", "brotli", "colorama", "cupy", "deepspeed", "h2", "json", "mpi4py", "orjson"),
    *("simplejson", "socks", "tensorflow", "torch_xla", "triton", "typing", "uvloop", "zstandard"),
)


def plant(folder: Path) -> Path:
    """Plants modules that leave a file with their name; returns the folder of these files."""
    ran = folder / "ran"
    ran.mkdir(parents=True)
    for name in NAMES:
        (folder / f"{name}.py").write_text(f"open({str(ran / name)!r}, 'w').close()\n")
    return ran


def test_ray_adds_the_folder_of_the_script_and_not_the_current_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "scripts" / "train.py")])

    with named_code_alone() as job:
        assert (job._runtime_env_has_working_dir(), job._py_driver_sys_path) == (True, [])
    monkeypatch.syspath_prepend(str(tmp_path / "scripts"))
    with named_code_alone() as job:
        assert job._py_driver_sys_path == [str(tmp_path / "scripts")]
    assert job._runtime_env_has_working_dir() is False


def test_a_process_for_models_starts_without_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = plant(tmp_path)
    monkeypatch.chdir(tmp_path)
    forks = _Forks()
    monkeypatch.setattr(isolation, "_forks", forks)

    with pytest.raises(ModelError, match="ended the process"):
        run_apart(describe_to_json, {}, 300)  # an order without a model
    forks.close()

    assert list(ran.iterdir()) == []


@pytest.mark.thorough
@pytest.mark.slow
def test_a_sweep_in_a_folder_of_planted_modules_runs_none(tmp_path: Path) -> None:
    ran = plant(tmp_path)
    write_sweep(tmp_path / "sweep.yaml", space={"micro_batch": [1, 2]}, budget={"trials": 1})

    sweep = plimsoll("tune", "sweep.yaml", "--plain", folder=tmp_path, PYTHONPATH=str(ROOT))

    assert sweep.returncode == 0, sweep.stdout + sweep.stderr
    assert list(ran.iterdir()) == []
