"""The meter's arithmetic on a model of a device, alone and below the runtime of CUDA."""

from collections.abc import Sequence
from typing import Literal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.workers.memory.model_device import GIB, ModelDevice, cuda_on_model, tpu_on_model
from workers.memory.device_runtime import AbstractDeviceRuntime
from workers.memory.meter import Meter, OverLimit, StateBytes

TOTAL = 80 * GIB
NO_STATES = StateBytes(weights=0, gradients=0, optimizer_states=0)


def test_a_part_of_a_cuda_device_is_kept_for_libraries() -> None:
    with cuda_on_model(ModelDevice(total=TOTAL)) as cuda:
        assert cuda.usable_bytes == TOTAL - TOTAL // 100
        assert Meter(cuda, None).limit_bytes == cuda.usable_bytes
        assert Meter(cuda, 10 * GIB).limit_bytes == 10 * GIB
        assert Meter(cuda, TOTAL).limit_bytes == cuda.usable_bytes
    with cuda_on_model(ModelDevice(total=8 * GIB)) as small:
        assert small.usable_bytes == 8 * GIB - GIB // 4


def test_libraries_that_grow_beside_a_full_allocator_are_no_reason() -> None:
    model = ModelDevice(total=TOTAL)
    meter = Meter(model, 10 * GIB)
    with meter.enforced():
        assert model.cap == 9 * GIB  # a GiB is outside
        model.allocate(9 * GIB)
        with pytest.raises(torch.OutOfMemoryError):
            model.allocate(1)
        model.outside += GIB
        meter.check()

    assert model.cap == TOTAL
    held = meter.reading(0, NO_STATES).peak_bytes
    assert held == 11 * GIB  # what was held is told nevertheless


def test_a_tpu_without_a_limit_ends_a_trial_above_its_budget_by_the_peak() -> None:
    model = ModelDevice(total=TOTAL, caches=False)
    with tpu_on_model(model) as tpu:
        meter = Meter(tpu, 10 * GIB)
        with meter.enforced():
            meter.check()
            model.free(model.allocate(9 * GIB + 1))  # a GiB is outside
            with pytest.raises(OverLimit) as caught:
                meter.check()

    assert caught.value.wanted_bytes == 10 * GIB + 1


def test_a_broken_device_does_not_hide_its_error() -> None:
    model = ModelDevice(total=TOTAL)

    def fail() -> None:
        with Meter(model, None).enforced():
            model.breaks_after = 0
            raise LookupError("the first one")

    with pytest.raises(LookupError, match="the first one"):
        fail()


def test_retries_are_the_allocators() -> None:
    model = ModelDevice(total=TOTAL)
    model.free(model.allocate(TOTAL // 2))
    model.allocate(TOTAL // 2 + 1)

    assert Meter(model, None).allocator_retries() == 1


def test_before_its_first_allocation_torch_has_no_statistics(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with cuda_on_model(ModelDevice()) as cuda:
        monkeypatch.setattr(torch.accelerator, "memory_stats", lambda _: {})

        memory = cuda.memory()

    assert (memory.reserved_bytes, memory.allocator_retries) == (0, 0)
    assert memory.outside_bytes == GIB


Step = tuple[Literal["allocate", "free", "grow", "shrink", "break"], int]  # with GiB
STEPS: st.SearchStrategy[list[Step]] = st.lists(
    st.tuples(
        st.sampled_from(("allocate", "allocate", "free", "grow", "shrink", "break")),
        st.integers(1, 6),
    ),
    max_size=12,
)


@pytest.mark.parametrize("kind", ["model", "CUDA's on the model"])
@given(before=st.integers(0, 12), outside=st.integers(0, 8), budget=st.integers(1, 24), steps=STEPS)
def test_whatever_happens_on_a_device_the_meter_tells_it(
    kind: str, before: int, outside: int, budget: int, steps: Sequence[Step]
) -> None:
    """A trial with a block built before its limit, beside libraries and other processes."""
    model = ModelDevice(total=24 * GIB, outside=outside * GIB)
    with cuda_on_model(model) as cuda:
        runtime: AbstractDeviceRuntime = model if kind == "model" else cuda
        _measure(model, Meter(runtime, budget * GIB), before, outside, budget, steps)


def _measure(
    model: ModelDevice, meter: Meter, before: int, outside: int, budget: int, steps: Sequence[Step]
) -> None:
    model.free(model.allocate(before * GIB + GIB))  # a peak of the past
    model.give_back()
    model.allocate(before * GIB)
    highest = model.reserved
    ended: Exception | None = None
    try:
        with meter.enforced():
            share = max(budget - outside, 0) * GIB
            for name, count in steps:
                _happen(model, name, count * GIB)
                highest = max(highest, model.reserved)
                assert model.reserved <= max(share, before * GIB)
            peak = meter.reading(0, NO_STATES)
            assert (peak.reserved_bytes, peak.anatomy.outside) == (highest, model.outside)
            assert peak.peak_bytes == highest + model.outside
            meter.check()
    except (torch.OutOfMemoryError, OverLimit, torch.AcceleratorError) as error:
        ended = error

    assert isinstance(ended, torch.AcceleratorError) is (model.breaks_after is not None)
    if isinstance(ended, torch.AcceleratorError):
        with pytest.raises(torch.AcceleratorError):
            meter.close()
        return
    if not isinstance(ended, torch.OutOfMemoryError):
        assert isinstance(ended, OverLimit) is (before + outside > budget)
    assert model.cap == model.total  # an error is handled without a limit
    held = sum(block.segment for block in model.blocks)
    assert meter.close() == max(held + model.outside - outside * GIB, 0)
    assert model.cache == []


def _happen(model: ModelDevice, name: str, size: int) -> None:
    match name:
        case "allocate":
            model.allocate(size)
        case "free" if model.blocks:
            model.free(model.blocks[size % len(model.blocks)])
        case "grow":  # no more than the device has
            model.outside += min(size, model.total - model.outside - model.reserved)
        case "shrink":
            model.outside -= min(size, model.outside)
        case "break":
            model.breaks_after = 0
