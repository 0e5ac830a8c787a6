"""The CPU meter in a separate process: resident peaks, the limit and residuals."""

from typing import Any

import pytest
import torch

from tests.workers.launch import Group
from workers.memory.device_runtime import CpuRuntime
from workers.memory.meter import Meter, OverLimit, StateBytes
from workers.worker import Worker

MIB = 2**20
BUDGET_BYTES = 64 * MIB
NO_STATES = StateBytes(weights=0, gradients=0, optimizer_states=0)
PIECE_BYTES = MIB  # small enough for the heap, which keeps holes; larger ones are mapped alone


def cpu_meter(budget_bytes: int | None, local_world_size: int = 1) -> Meter:
    return Meter(CpuRuntime(local_world_size), budget_bytes)


def _fill(count: int, size_bytes: int = PIECE_BYTES) -> list[torch.Tensor]:
    return [torch.ones(size_bytes // 4) for _ in range(count)]


def _peak_after_free_memory(_: Worker) -> int:
    """Peak of a 16 MiB tensor in a process with unused free memory at the start of the trial."""
    meter = cpu_meter(BUDGET_BYTES)
    pieces = _fill(2 * BUDGET_BYTES // PIECE_BYTES)
    last = pieces[-1]  # on top of the heap: what lies below stays, and is free
    del pieces
    meter.open()
    with meter.enforced():
        tensor = torch.ones(16 * MIB // 4)
        del tensor, last
        return meter.reading(0, NO_STATES).peak_bytes


def test_what_was_free_when_the_trial_began_is_not_taken_off_its_peak(alone: Group) -> None:
    """Fresh workers begin with free memory left by their start."""
    (peak_bytes,) = alone.call(_peak_after_free_memory)

    assert peak_bytes == pytest.approx(16 * MIB, abs=4 * MIB)


def _by_way_of_holes(_: Worker) -> int | None:
    """Fills holes of an earlier trial beyond the budget; returns the wanted bytes if refused."""
    pieces = _fill(3 * BUDGET_BYTES // PIECE_BYTES)
    last = pieces[-1]  # on top of the heap: what lies below stays as holes
    del pieces
    meter = cpu_meter(BUDGET_BYTES)
    with meter.enforced():
        try:
            kept = _fill(2 * BUDGET_BYTES // PIECE_BYTES)
            meter.check()
        except OverLimit as error:
            return error.wanted_bytes
        except RuntimeError:
            return 2 * BUDGET_BYTES  # the line itself held
    del kept, last
    return None


def test_what_fits_into_holes_is_held_to_the_budget_too(alone: Group) -> None:
    (wanted_bytes,) = alone.call(_by_way_of_holes)

    assert wanted_bytes is not None
    assert wanted_bytes > BUDGET_BYTES


def _left_behind(_: Worker, count: int) -> int:
    meter = cpu_meter(BUDGET_BYTES)
    with meter.enforced():
        kept = _fill(count)
        _fill(count)
    left = meter.close()
    del kept
    return left


@pytest.mark.parametrize("count", [0, 24])
def test_what_does_not_come_back_is_counted(alone: Group, count: int) -> None:
    (left_bytes,) = alone.call(_left_behind, count)

    assert left_bytes == pytest.approx(count * PIECE_BYTES, abs=2 * MIB)


def _limits(_: Worker) -> tuple[Any, ...]:
    free = cpu_meter(None).limit_bytes
    shared = cpu_meter(None, 4).limit_bytes
    capped = cpu_meter(2**60).limit_bytes
    return cpu_meter(BUDGET_BYTES).limit_bytes, free, shared, capped


def test_without_a_budget_ranks_share_the_free_memory(alone: Group) -> None:
    ((given, free, shared, capped),) = alone.call(_limits)

    assert given == BUDGET_BYTES
    assert shared == pytest.approx(free / 4, rel=0.2)
    assert capped == pytest.approx(free, rel=0.2)


def _nearly_full_with(_: Worker, size_bytes: int) -> tuple[bool, int]:
    """Result of `nearly_full`, and resident bytes, which are few for memory never written to."""
    meter = cpu_meter(8 * BUDGET_BYTES)
    with meter.enforced():
        tensor = torch.empty(size_bytes, dtype=torch.uint8)
        found = meter.nearly_full(), meter.bytes_in_use()
        del tensor
        return found


def test_memory_that_is_not_resident_fills_the_limit_too(alone: Group) -> None:
    """An allocation fails at the limit of address space, but oneDNN's error does not say so."""
    ((full, held_bytes),) = alone.call(_nearly_full_with, 480 * MIB)
    ((roomy, _),) = alone.call(_nearly_full_with, 128 * MIB)

    assert held_bytes < 8 * MIB
    assert (full, roomy) == (True, False)
