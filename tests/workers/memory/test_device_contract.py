"""Every device runtime obeys one contract, and so does the model that stands for a device."""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.workers.launch import Group
from tests.workers.memory.device_contract import MIB, Contract, Operation, check_events
from tests.workers.memory.model_device import GIB, ModelDevice, cuda_on_model, tpu_on_model
from tests.workers.values import a_spec
from workers.memory.device_runtime import AbstractDeviceRuntime, runtime_for
from workers.worker import Worker

CPU_SLACK_BYTES, CUDA_SLACK_BYTES = 8 * MIB, 2 * MIB  # the heap's top; rounding of segments
BLOCKS = st.integers(2, 8).map(lambda count: 8 * count)
OPERATIONS: st.SearchStrategy[list[Operation]] = st.lists(
    st.one_of(
        st.tuples(st.just("allocate"), BLOCKS),
        st.tuples(st.just("free"), st.integers(0, 7)),
        st.tuples(st.sampled_from(("reset_peak", "give_back", "lift")), st.just(0)),
        st.tuples(st.just("limit"), st.integers(1, 16).map(lambda count: 8 * count + 4)),
    ),
    min_size=1,
    max_size=12,
)
SEQUENCE: list[Operation] = [
    ("limit", 20), ("allocate", 64), ("lift", 0), ("allocate", 64), ("reset_peak", 0),
    ("free", 0), ("give_back", 0), ("reset_peak", 0), ("allocate", 16),
]  # fmt: skip  # a refusal, then the same with the limit lifted; a peak that is over
KINDS = ("model", "CUDA's on the model", "a TPU's on the model")


@contextlib.contextmanager
def runtime_on(kind: str, model: ModelDevice) -> Iterator[AbstractDeviceRuntime]:
    """Yields the model itself, or the runtime of a type of device above it."""
    on_model = {KINDS[1]: cuda_on_model, KINDS[2]: tpu_on_model}
    if kind not in on_model:
        yield model
        return
    with on_model[kind](model) as runtime:
        yield runtime


def obey_on_model(kind: str, operations: Sequence[Operation]) -> None:
    """Runs the contract on the model itself, or on the runtime of a type of device above it."""
    model = ModelDevice(total=2 * GIB, caches=kind != KINDS[2])

    def allocate(size: int) -> Callable[[], None]:
        block = model.allocate(size)
        return lambda: model.free(block)

    with runtime_on(kind, model) as runtime:
        assert runtime.limits_allocations == (kind != KINDS[2])
        Contract(runtime, torch.device("cuda", 0), allocate, 1).obey(operations)


@pytest.mark.parametrize("kind", KINDS)
@given(operations=OPERATIONS)
@example(operations=SEQUENCE)
def test_a_model_obeys(kind: str, operations: Sequence[Operation]) -> None:
    obey_on_model(kind, operations)


def _obeys(worker: Worker, operations: Sequence[Operation], slack_bytes: int) -> str:
    """Returns what a real device did against the contract; a failure must not end the rank."""

    def allocate(size: int) -> Callable[[], None]:
        held = [torch.ones(size // 4, device=worker.device)]
        return held.clear

    try:
        Contract(worker.runtime, worker.device, allocate, slack_bytes).obey(operations)
    except AssertionError as error:
        return str(error) or "an assertion failed"
    return ""


@pytest.fixture
def fresh() -> Iterator[Group]:
    """A rank that ran no other test, whose pages may be anywhere in the heap."""
    group = Group(1, a_spec())
    yield group
    group.stop()


def test_the_cpu_obeys(fresh: Group) -> None:
    @settings(max_examples=settings().max_examples // 3)
    @given(operations=OPERATIONS)
    @example(operations=SEQUENCE)
    def obeys(operations: Sequence[Operation]) -> None:
        assert fresh.call(_obeys, operations, CPU_SLACK_BYTES) == [""]

    fresh.call(_obeys, [("allocate", 64)], 2**60)  # its first run loads code
    obeys()


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@given(operations=OPERATIONS)
@example(operations=SEQUENCE)
def test_a_gpu_obeys(operations: Sequence[Operation]) -> None:
    device = torch.device("cuda", 0)

    def allocate(size: int) -> Callable[[], None]:
        held = [torch.ones(size // 4, device=device)]
        return held.clear

    Contract(runtime_for(device), device, allocate, CUDA_SLACK_BYTES).obey(operations)


@pytest.mark.parametrize("kind", KINDS)
def test_events_of_a_queue_tell_when_the_device_passed_them(kind: str) -> None:
    model = ModelDevice()

    with runtime_on(kind, model) as runtime:
        runtime.clock = model.clock

        assert check_events(runtime, lambda: model.compute(0.25)) == pytest.approx(0.25)


def test_events_of_the_cpu_are_moments() -> None:
    assert check_events(runtime_for(torch.device("cpu")), lambda: time.sleep(0.02)) >= 0.02


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_events_of_a_gpu_enclose_its_kernels() -> None:
    device = torch.device("cuda", 0)
    left = torch.ones(4096, 4096, device=device)

    assert check_events(runtime_for(device), lambda: [left @ left for _ in range(20)]) > 0
