"""Trials on a real GPU: memory, its end, and errors that only new processes survive."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from search_spaces.trial import Crashed, Measured, OutOfMemory, TrialRequest
from tests.workers.launch import Group
from tests.workers.odd_models import HUGE_BYTES
from tests.workers.values import a_plan, a_spec, odd_model
from workers.memory.nvml import memory_in_use, nvml_device
from workers.memory.oom import FailedAllocation, failed_allocation
from workers.worker import Worker

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]
LIMIT_GIB = 1.25  # a context and a tiny model fit, HUGE_BYTES beside them do not
ON_GPU = {"device": "cuda", "workers": 1, "memory_gib": LIMIT_GIB}
MIB = 2**20


def request(**sections: Any) -> TrialRequest:
    spec = a_spec(cluster=ON_GPU, **sections)
    return TrialRequest(number=0, plan=a_plan(data=1), spec=spec)


@pytest.fixture(scope="module")
def group() -> Iterator[Group]:
    started = Group(1, a_spec(cluster=ON_GPU))
    yield started
    started.stop()


def test_a_trial_tells_all_memory_that_it_held(group: Group) -> None:
    group.run(request())  # kernels that the first trial loads stay in the process
    outcome = group.run(request())

    assert isinstance(outcome, Measured), outcome
    memory = outcome.memory
    assert memory.allocated_bytes is not None
    assert 0 < memory.allocated_bytes <= memory.reserved_bytes < memory.peak_bytes
    assert memory.peak_bytes == memory.reserved_bytes + memory.anatomy.outside
    assert memory.limit_bytes == int(LIMIT_GIB * 2**30)
    assert memory.anatomy.outside > 100 * MIB  # a context
    held = outcome.conditions.device_memory_bytes
    assert held is None or abs(held - memory.peak_bytes) < 64 * MIB
    assert outcome.costs.residual_bytes < MIB


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_out_of_memory_tells_what_was_wanted_and_the_worker_goes_on(
    group: Group, where: str
) -> None:
    outcome = group.run(request(model=odd_model("allocates", where=where, call=2)))

    assert isinstance(outcome, OutOfMemory), outcome
    assert (outcome.where, outcome.phase) == ("device", where)
    assert outcome.wanted_bytes is not None
    assert outcome.wanted_bytes > max(HUGE_BYTES, outcome.limit_bytes or 0)
    assert outcome.costs is not None
    assert outcome.costs.residual_bytes < MIB
    assert isinstance(group.run(request()), Measured)


def test_an_error_of_the_device_is_an_outcome() -> None:
    alone = Group(1, a_spec(cluster=ON_GPU))  # nothing runs in its process afterwards
    outcome = alone.run(request(model=odd_model("beyond", call=2)))
    alone.stop()

    assert isinstance(outcome, Crashed), outcome
    assert outcome.cause == "device_error"
    assert "device-side assert" in outcome.trace


def test_pinned_memory_is_given_back(group: Group) -> None:
    held, after = group.call(_pins)[0]

    assert held >= 256 * MIB
    assert after == 0


def _pins(worker: Worker) -> tuple[int, int]:
    worker.meter.open()
    tensor = torch.empty(256 * MIB, dtype=torch.uint8, pin_memory=True)
    tensor.to(worker.device, non_blocking=True)
    held = torch.cuda.host_memory_stats()["allocated_bytes.current"]
    del tensor
    worker.meter.close()
    return held, torch.cuda.host_memory_stats()["allocated_bytes.current"]


def test_what_libraries_load_beside_a_full_allocator_ends_no_trial(group: Group) -> None:
    (taken,) = group.call(_fills_its_share)

    assert taken > 256 * MIB


def _fills_its_share(worker: Worker) -> int:
    """Returns the bytes that the allocator gave before cuSOLVER was loaded, without an error."""
    with worker.meter.enforced():
        free = worker.meter.limit_bytes - worker.meter.bytes_in_use()
        held = torch.empty(free - 64 * MIB, dtype=torch.uint8, device=worker.device)
        torch.linalg.svd(torch.ones(64, 64, device=worker.device))
        worker.meter.check()
        taken = held.nbytes
        del held
    worker.meter.close()
    return taken


def test_the_driver_and_cuda_agree_on_what_is_in_use(group: Group) -> None:
    by_driver, by_cuda = group.call(_in_use)[0]

    assert abs(by_driver - by_cuda) < 64 * MIB


def _in_use(worker: Worker) -> tuple[int, int]:
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info(worker.device)
    with nvml_device(worker.device) as gpu:
        assert gpu is not None
        return memory_in_use(gpu.library, gpu.handle), total - free


def test_pinned_memory_that_is_not_there_is_the_hosts(group: Group) -> None:
    assert group.call(_pins_too_much) == [FailedAllocation(where="host", asked_bytes=None)]


def _pins_too_much(worker: Worker) -> FailedAllocation | None:
    try:
        torch.empty(2**45, dtype=torch.uint8, pin_memory=True)
    except Exception as error:  # noqa: BLE001  # which one is the question
        print(f"{type(error).__name__}: {error}")
        return failed_allocation(error, worker.device, nearly_full=False)
    raise AssertionError("32 TiB were pinned")
