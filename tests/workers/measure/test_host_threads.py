"""Threads on the host: a GPU's share of the node's cores, in torch and in what is loaded later."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from workers.measure import host_threads
from workers.measure.host_threads import usable_cores, use_threads

CUDA, CPU = torch.device("cuda", 0), torch.device("cpu")


@pytest.fixture(autouse=True)
def threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("device", "cores", "gpus", "given", "expected"),
    [
        (CPU, 64, 8, 3, 3),  # as the specification says
        (CUDA, 64, 8, 1, 8),
        (CUDA, 64, 8, 12, 12),
        (CUDA, 4, 8, 1, 1),
    ],
)
def test_a_gpu_has_its_share_of_the_cores(
    monkeypatch: pytest.MonkeyPatch,
    device: torch.device,
    cores: int,
    gpus: int,
    given: int,
    expected: int,
) -> None:
    monkeypatch.setattr(host_threads, "usable_cores", lambda: cores)
    monkeypatch.setattr(host_threads, "gpus_of_node", lambda: gpus)

    assert host_threads.host_threads(device, given) == expected


@pytest.mark.parametrize(
    ("quota", "cores"),
    [("max 100000", None), ("100000 100000", 1), ("50000 100000", 1), ("nonsense", None)],
)
def test_a_containers_quota_bounds_the_cores(tmp_path: Path, quota: str, cores: int | None) -> None:
    file = tmp_path / "cpu.max"
    file.write_text(quota)

    assert usable_cores(file) == (cores or len(os.sched_getaffinity(0)))
    assert usable_cores(tmp_path / "none") == len(os.sched_getaffinity(0))


def test_torch_and_what_is_loaded_later_are_told() -> None:
    """Ray sets the variable to one core before torch is imported."""
    use_threads(2)

    assert torch.get_num_threads() == 2
    assert os.environ["OMP_NUM_THREADS"] == "2"
