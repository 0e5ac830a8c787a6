"""What the machine does while steps are measured: real samples of this one."""

from __future__ import annotations

import threading
import time

import torch

from search_spaces.outcome import Conditions
from workers.measure.conditions import SAMPLE_SECONDS, ConditionsSampler

CPU = torch.device("cpu")


def sampled(seconds: float, device: torch.device = CPU) -> Conditions:
    with ConditionsSampler.running(device) as sampler:
        sampler.begin()
        time.sleep(seconds)
        return sampler.read()


def test_the_host_is_sampled_in_percent() -> None:
    conditions = sampled(3 * SAMPLE_SECONDS)

    assert conditions.host_cpu_percent is not None
    assert conditions.host_memory_percent is not None
    assert 0 <= conditions.host_cpu_percent <= 100
    assert 0 < conditions.host_memory_percent < 100


def test_a_host_that_works_is_busier_than_none() -> None:
    until = time.monotonic() + 4 * SAMPLE_SECONDS
    with ConditionsSampler.running(CPU) as sampler:
        sampler.begin()
        while time.monotonic() < until:
            sum(range(1000))
        conditions = sampler.read()

    assert conditions.host_cpu_percent is not None
    assert conditions.host_cpu_percent > 10


def test_without_a_gpu_there_is_nothing_to_say_of_one() -> None:
    conditions = sampled(2 * SAMPLE_SECONDS)

    assert conditions.device_utilisation_percent is None
    assert conditions.device_power_watts is None
    assert conditions.device_memory_bytes is None
    assert conditions.throttled == ()


def test_nothing_is_sampled_before_it_begins() -> None:
    with ConditionsSampler.running(CPU) as sampler:
        time.sleep(2 * SAMPLE_SECONDS)
        conditions = sampler.read()

    assert conditions.host_cpu_percent is None
    assert conditions.host_memory_percent is None


def test_its_thread_ends_with_it() -> None:
    before = threading.active_count()

    sampled(0.0)

    assert threading.active_count() == before


def test_a_gpu_without_a_driver_is_no_reason_to_fail() -> None:
    """Where there is a driver, the samples are real; where there is none, there are none."""
    conditions = sampled(3 * SAMPLE_SECONDS, torch.device("cuda", 0))

    assert conditions.host_memory_percent is not None
    if not torch.cuda.is_available():
        assert conditions.device_power_watts is None
        assert conditions.device_memory_bytes is None
