"""Tests `memory.snapshot` with a fake allocator that reports its failure as torch's does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from search_spaces.trial import TrialRequest
from tests.workers.values import a_plan, a_spec
from workers.memory.oom import OomSnapshots

GIVES_UP = (0, 2**30, 2**34, 2**20)  # device, asked for, in use, free


def watched(dump: Callable[[str], None]) -> tuple[OomSnapshots, Callable[..., None]]:
    """Snapshots, and the observer that the allocator calls on failure."""
    told: list[Callable[..., None]] = []
    snapshots = OomSnapshots(dump)
    snapshots.watch(told.append)
    (ran_out,) = told
    return snapshots, ran_out


def write(file: str) -> None:
    Path(file).write_bytes(b"a snapshot")


@pytest.fixture
def stem(tmp_path: Path) -> str:
    """Stem of snapshots in a study's folder that has no folder of snapshots yet."""
    (tmp_path / "demo").mkdir()
    return str(tmp_path / "demo" / "snapshots" / "trial-3")


def test_what_runs_out_within_a_trial_leaves_a_file(stem: str) -> None:
    snapshots, ran_out = watched(write)

    ran_out(*GIVES_UP)  # before the trial
    with snapshots.armed(stem, 1):
        assert not Path(stem).parent.exists()
        ran_out(*GIVES_UP)
        ran_out(*GIVES_UP)
    after = Path(f"{stem}.rank-1.pickle")
    assert after.read_bytes() == b"a snapshot"
    after.unlink()
    ran_out(*GIVES_UP)
    assert not after.exists()


def test_without_a_place_or_the_studys_folder_nothing_is_left(tmp_path: Path) -> None:
    snapshots, ran_out = watched(write)

    with snapshots.armed(None, 0):
        ran_out(*GIVES_UP)
    with snapshots.armed(str(tmp_path / "elsewhere" / "snapshots" / "trial-3"), 0):
        ran_out(*GIVES_UP)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("fault", [OSError("disk full"), RuntimeError("CUDA"), MemoryError()])
def test_a_snapshot_that_fails_does_not_hide_what_ran_out(stem: str, fault: Exception) -> None:
    def fail(_: str) -> None:
        raise fault

    snapshots, ran_out = watched(fail)
    with snapshots.armed(stem, 0):
        ran_out(*GIVES_UP)


def test_only_the_rank_that_the_outcome_names_keeps_its_own(stem: str) -> None:
    for rank, kept in ((0, False), (1, True)):
        snapshots, ran_out = watched(write)
        with snapshots.armed(stem, rank):
            ran_out(*GIVES_UP)
        snapshots.settle(stem, rank, kept=kept)
        snapshots.settle(None, rank, kept=False)

    assert [file.name for file in Path(stem).parent.iterdir()] == ["trial-3.rank-1.pickle"]


def test_a_request_says_where_if_its_study_has_a_name() -> None:
    named = a_spec(study={"name": "demo", "folder": "runs"})

    assert TrialRequest(number=3, plan=a_plan(), spec=a_spec()).snapshot is None
    trial = TrialRequest(number=3, plan=a_plan(), spec=named)
    validation = TrialRequest(number=3, plan=a_plan(), spec=named, validation=True)
    assert trial.snapshot == "runs/demo/snapshots/trial-3"
    assert validation.snapshot == "runs/demo/snapshots/validation-3"


@pytest.mark.skipif(torch.cuda.is_available(), reason="of a torch without CUDA")
def test_a_cpu_has_nothing_to_watch() -> None:
    OomSnapshots().watch()


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_leaves_its_own_snapshot(stem: str) -> None:
    snapshots = OomSnapshots()
    snapshots.watch()
    with snapshots.armed(stem, 0), pytest.raises(torch.OutOfMemoryError):
        torch.empty(2**50, dtype=torch.uint8, device="cuda")

    assert Path(f"{stem}.rank-0.pickle").stat().st_size > 0
