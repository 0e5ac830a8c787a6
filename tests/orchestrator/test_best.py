"""`load_best`: the answer of a study, of a folder, and the example that trains with it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator import load_best
from orchestrator.export import exported, write_bundle
from search_spaces.errors import UserError
from search_spaces.exported import SPEC_FILE
from search_spaces.spec.load import load_spec
from search_spaces.spec.schema import StudySpec
from tests.orchestrator.cli.test_sync import swept
from tests.orchestrator.export.folders import ROOT, taken_of
from tests.workers.values import LLAMA, a_plan

KEPT = Path(StudySpec().folder) / "demo" / SPEC_FILE  # the specification of the sweep
EXAMPLE = ROOT / "examples" / "own_loop.py"


def test_it_is_the_answer_of_the_latest_sweep_or_any_trial_that_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="no sweep has run"):
        load_best()
    spec = swept(model=LLAMA)  # trial 1 ran out of memory, trial 2 is best

    best, first = load_best(), load_best(KEPT, trial=0)

    assert (best.study, best.trial, first.trial) == ("demo", 2, 0)
    assert (best.samples_per_second.value, first.samples_per_second.value) == (39.5, 20.0)
    assert best.spec.model == spec.model
    assert best.plan.global_batch == spec.train.global_batch
    with pytest.raises(UserError, match="trial 1 of study demo ended with out of memory"):
        load_best(trial=1)


def test_a_folder_that_was_exported_says_the_same(tmp_path: Path) -> None:
    what = taken_of(a_plan(zero_stage=3))
    write_bundle(exported(what), what, tmp_path / "out")

    best = load_best(tmp_path / "out")

    assert (best.study, best.trial, best.plan) == (what.study, 3, what.plan)
    assert best.spec == load_spec(tmp_path / "out" / "spec.yaml")


@pytest.mark.slow
def test_the_example_trains_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    swept(model=load_spec(ROOT / "examples" / "demo.yaml").model.model_dump())
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    torchrun = [str(Path(sys.executable).parent / "torchrun"), "--nproc-per-node", "2"]

    ran = subprocess.run(
        [*torchrun, str(EXAMPLE), str(KEPT)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )

    assert ran.returncode == 0, ran.stderr
    losses = [float(line.split()[-1]) for line in ran.stdout.splitlines()]
    assert len(losses) == 10
    assert losses[-1] < losses[0]
