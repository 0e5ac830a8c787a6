"""Tests `workers.probe`: measurements by real ranks and of drives, and devices made of them."""

import dataclasses
import multiprocessing
from pathlib import Path

import pytest
import torch

from search_spaces.errors import ClusterError
from search_spaces.hardware.catalogue import known_device, load_device_file
from search_spaces.hardware.files import device_to_yaml
from tests.workers.probe.values import ON_A_GPU, TINY
from workers.probe.config import ProbeResult
from workers.probe.device import describe
from workers.probe.rank import probe_ranks
from workers.probe.rates import (
    CHUNK_BYTES,
    best_seconds,
    bus_bandwidth,
    drive_rates,
    sustained_seconds,
)

ON_8 = dataclasses.replace(TINY, device_type="cuda", ranks=8)


def children() -> set[int | None]:
    """Child processes, including the warm ranks of other tests."""
    return {process.pid for process in multiprocessing.active_children()}


@pytest.fixture(scope="module")
def findings(tmp_path_factory: pytest.TempPathFactory) -> ProbeResult:
    folder = tmp_path_factory.mktemp("drive")
    before = children()
    found = probe_ranks(TINY, drive=folder)

    assert not list(folder.iterdir()), "the probe left its file"
    assert children() == before
    return found


@pytest.mark.slow
def test_every_shape_and_precision_is_measured(findings: ProbeResult) -> None:
    measured = {point[:4] for point in findings.matmul_points}

    assert measured == {(name, *shape) for name in TINY.precisions for shape in TINY.shapes}
    assert all(rate > 0 for *_, rate in findings.matmul_points)


@pytest.mark.slow
def test_every_collective_is_measured_at_every_size(findings: ProbeResult) -> None:
    measured = {point[:3] for point in findings.collective_points}
    collectives = ("all_reduce", "all_gather", "reduce_scatter")

    assert measured == {(name, 2, size) for name in collectives for size in TINY.collective_bytes}


@pytest.mark.slow
def test_a_cpu_becomes_a_device_that_a_user_could_have_written(
    findings: ProbeResult, tmp_path: Path
) -> None:
    device = describe(findings, TINY)
    path = tmp_path / "cpu.yaml"
    path.write_text(device_to_yaml(device), encoding="utf-8")

    assert load_device_file(path) == (device,)
    assert device.name == "cpu"
    assert device.measured
    name = "network_bytes_per_second"
    assert getattr(device, name) == getattr(known_device("cpu"), name)
    fastest = max(rate for name, *_, rate in findings.matmul_points if name == "fp32")
    assert device.fp32_flops_per_second == pytest.approx(fastest, rel=1e-3)


@pytest.mark.thorough
@pytest.mark.slow
def test_a_rank_that_fails_ends_the_probe_with_its_reason(tmp_path: Path) -> None:
    before = children()
    broken = dataclasses.replace(TINY, shapes=((1, 1, -1),))

    with pytest.raises(ClusterError, match=r"rank \d of the probe failed: .*negative"):
        probe_ranks(broken, drive=tmp_path)
    assert children() == before


@pytest.mark.thorough
@pytest.mark.slow
def test_a_probe_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    before = children()
    endless = dataclasses.replace(TINY, matmul_seconds=1e6, timeout_seconds=3.0)

    with pytest.raises(ClusterError, match="did not finish within 3 s"):
        probe_ranks(endless, drive=tmp_path)
    assert children() == before


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="is not a folder"):
        probe_ranks(TINY, drive=tmp_path / "none")


@pytest.mark.parametrize("first", [1e-5, 0.4], ids=["bundled", "long"])
def test_the_fastest_repeat_counts_and_not_the_first(first: float) -> None:
    """A clock that only calls advance: they take less and less time, then a constant time."""
    now, calls = [0.0], [0]

    def work() -> None:
        calls[0] += 1
        now[0] += 100 * first if calls[0] == 1 else first if calls[0] < 4 else first / 2

    seconds = best_seconds(work, torch.device("cpu"), budget_seconds=1.0, clock=lambda: now[0])

    assert seconds == pytest.approx(first / 2)
    assert now[0] - 100 * first >= 1.0


def test_sustained_time_is_the_mean_after_clocks_have_settled() -> None:
    """Calls take 1 ms while the device is cool, for 0.2 s, and then 2 and 4 ms in turn."""
    now, calls = [0.0], [0]

    def work() -> None:
        calls[0] += 1
        now[0] += 0.001 if now[0] < 0.2 else 0.002 * (1 + calls[0] % 2)

    seconds = sustained_seconds(work, torch.device("cpu"), budget_seconds=1.0, clock=lambda: now[0])

    assert seconds == pytest.approx(0.003, rel=0.01)
    assert 1.25 <= now[0] < 1.5


def test_the_bus_bandwidth_is_that_of_the_largest_all_reduce() -> None:
    # each of 8 ranks sends and receives 2 * 7/8 of 8 GB in 0.04 s
    assert bus_bandwidth(ON_A_GPU.collective_points) == pytest.approx(350e9)
    assert bus_bandwidth((("all_gather", 2, 8, 1.0),)) is None


def test_a_known_gpu_keeps_the_peaks_of_its_data_sheet() -> None:
    device, sheet = describe(ON_A_GPU, ON_8), known_device("H100")

    assert device.name == sheet.name
    assert device.bf16_flops_per_second == sheet.bf16_flops_per_second
    assert device.network_bytes_per_second == sheet.network_bytes_per_second
    assert device.matmul_points[0] == ("bf16", 8192, 8192, 8192, 7.123e14)
    assert device.matmul_throttles == ("power cap",)
    assert device.power_watts == 650.0
    assert device.bandwidth_bytes_per_second == 3.0e12
    assert device.pcie_bytes_per_second == 5.2e10
    assert device.pageable_bytes_per_second == 6e9
    assert device.link_bytes_per_second == pytest.approx(350e9)
    assert device.drive_access == "direct_io"
    assert (device.nvme_write_bytes_per_second, device.nvme_read_bytes_per_second) == (2e9, 5e9)


def test_an_unknown_gpu_gets_the_peaks_that_were_measured() -> None:
    strange = dataclasses.replace(ON_A_GPU, device_name="Unheard X1", drive_bytes_per_second=None)
    device = describe(strange, ON_8)

    assert device.name == "Unheard X1"
    assert device.aliases == ()
    assert device.link_kind == "pcie"
    assert device.bf16_flops_per_second == 7.123e14
    assert device.fp8_flops_per_second == 0.0
    assert device.drive_access is None


class Ticking:
    """A clock that advances by a second at each reading."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


@pytest.mark.parametrize(
    ("chunks", "most_seconds", "seconds", "moved"),
    # the clock is read at the start, before each chunk (also one that comes too late), at the end
    [(3, 100.0, 4.0, 3), (1, 100.0, 2.0, 1), (50, 4.0, 5.0, 3)],
    ids=["whole", "one", "cut short"],
)
def test_rates_are_bytes_by_the_seconds_they_took(
    tmp_path: Path, chunks: int, most_seconds: float, seconds: float, moved: int
) -> None:
    rates = drive_rates(
        tmp_path, file_bytes=chunks * CHUNK_BYTES, most_seconds=most_seconds, clock=Ticking()
    )

    # what was written is read back, in time
    expected = (moved * CHUNK_BYTES / seconds, moved * CHUNK_BYTES / (moved + 1))
    assert rates == pytest.approx(expected)
    assert not list(tmp_path.iterdir())
