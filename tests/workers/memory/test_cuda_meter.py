"""The meter of a CUDA device, on a driver of numbers: where there is no GPU, its arithmetic."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch

from workers.memory.meter import CudaMeter, OverLimit

GIB = 2**30
TOTAL = 80 * GIB
DEVICE = torch.device("cuda", 0)


@dataclass
class Driver:
    """Bytes of a device, as torch.cuda tells them; a broken one refuses everything."""

    outside: int = GIB
    reserved: int = 0
    peak: int = 0
    fractions: list[float] = field(default_factory=list)
    broken: bool = False
    retries: int = 0

    def memory_stats(self, _: object) -> dict[str, int]:
        self._ask()
        return {"num_alloc_retries": self.retries} if self.retries else {}

    def mem_get_info(self, _: object) -> tuple[int, int]:
        self._ask()
        return TOTAL - self.outside - self.reserved, TOTAL

    def memory_reserved(self, _: object) -> int:
        self._ask()
        return self.reserved

    def max_memory_reserved(self, _: object) -> int:
        self._ask()
        return self.peak

    def set_per_process_memory_fraction(self, fraction: float, _: object) -> None:
        self._ask()
        self.fractions.append(fraction)

    def reset_peak_memory_stats(self, _: object) -> None:
        self.peak = self.reserved

    def synchronize(self, _: object = None) -> None:
        self._ask()

    def empty_cache(self) -> None:
        self._ask()

    def _ask(self) -> None:
        if self.broken:
            raise torch.AcceleratorError("CUDA error: device-side assert triggered")


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    made = Driver()
    for name in dir(made):
        if not name.startswith("_") and callable(getattr(made, name)):
            monkeypatch.setattr(torch.cuda, name, getattr(made, name))
    monkeypatch.setattr(torch.accelerator, "empty_host_cache", lambda: None, raising=False)
    return made


def test_a_part_of_the_device_is_kept_for_libraries(driver: Driver) -> None:
    meter = CudaMeter(None, DEVICE)

    assert meter.limit_bytes == TOTAL - TOTAL // 100
    with meter.enforced():
        pass
    assert driver.fractions == [pytest.approx((meter.limit_bytes - GIB) / TOTAL), 1.0]
    assert CudaMeter(10 * GIB, DEVICE).limit_bytes == 10 * GIB
    assert CudaMeter(TOTAL, DEVICE).limit_bytes == meter.limit_bytes


def test_libraries_that_grow_beside_a_full_allocator_are_no_reason(driver: Driver) -> None:
    meter = CudaMeter(10 * GIB, DEVICE)
    with meter.enforced():
        driver.reserved = driver.peak = 9 * GIB  # all that was left beside the context
        driver.outside += GIB
        meter.check()

    assert meter.peak().held_bytes == 11 * GIB  # what was held is told nevertheless


def test_what_was_held_before_the_limit_counts(driver: Driver) -> None:
    meter = CudaMeter(10 * GIB, DEVICE)
    driver.reserved = 12 * GIB
    with meter.enforced(), pytest.raises(OverLimit, match=f"held {13 * GIB} bytes"):
        meter.check()


@pytest.mark.parametrize(("reserved", "outside"), [(0, 0), (2, 0), (0, 3), (2, 3)])
def test_what_a_trial_leaves_in_segments_and_in_libraries_is_counted(
    driver: Driver, reserved: int, outside: int
) -> None:
    meter = CudaMeter(None, DEVICE)
    driver.reserved = GIB
    meter.open()
    driver.reserved += reserved * GIB
    driver.outside += outside * GIB

    assert meter.close() == (reserved + outside) * GIB


def test_a_broken_device_does_not_hide_its_error(driver: Driver) -> None:
    meter = CudaMeter(None, DEVICE)

    def fail() -> None:
        with meter.enforced():
            driver.broken = True
            raise LookupError("the first one")

    with pytest.raises(LookupError, match="the first one"):
        fail()


def test_retries_are_the_allocators(driver: Driver) -> None:
    meter = CudaMeter(None, DEVICE)

    assert meter.allocator_retries() == 0  # before its first allocation it has no statistics
    driver.retries = 7
    assert meter.allocator_retries() == 7
