"""Machine conditions while steps are measured: real samples of this machine."""

import threading
import time
from collections.abc import Callable

import torch

from search_spaces.trial import Conditions
from workers.measure.conditions import SAMPLE_SECONDS, ConditionsSampler

CPU = torch.device("cpu")


def rest() -> None:
    time.sleep(0.01)


def work() -> None:
    sum(range(1000))


def sampled(device: torch.device = CPU, meanwhile: Callable[[], None] = rest) -> Conditions:
    """Reads conditions after the first sample, however long that takes."""
    with ConditionsSampler.running(device) as sampler:
        sampler.begin()
        while (conditions := sampler.read()).host_memory_percent is None:
            meanwhile()
        return conditions


def test_the_host_is_sampled_and_nothing_is_said_of_a_gpu_that_is_not_there() -> None:
    before = set(threading.enumerate())
    conditions = sampled()

    assert conditions.host_cpu_percent is not None
    assert conditions.host_memory_percent is not None
    assert 0 <= conditions.host_cpu_percent <= 100
    assert 0 < conditions.host_memory_percent < 100
    assert conditions.device_utilisation_percent is None
    assert conditions.device_power_watts is None
    assert conditions.device_memory_bytes is None
    assert conditions.throttled == ()
    assert set(threading.enumerate()) <= before  # its thread has ended


def test_nothing_is_sampled_before_it_begins() -> None:
    with ConditionsSampler.running(CPU) as sampler:
        time.sleep(2 * SAMPLE_SECONDS)
        conditions = sampler.read()

    assert conditions.host_cpu_percent is None
    assert conditions.host_memory_percent is None


def test_a_gpu_without_a_driver_is_no_reason_to_fail() -> None:
    """Samples are real on a machine with a driver, and absent on others."""
    conditions = sampled(torch.device("cuda", 0))

    assert conditions.host_memory_percent is not None
    if not torch.cuda.is_available():
        assert conditions.device_power_watts is None
        assert conditions.device_memory_bytes is None
