"""Reuse of a worker group's processes for another plan."""

from dataclasses import replace

import pytest

from orchestrator.core.placement import Processes, reason_to_replace
from orchestrator.core.reasons import FreshWorkers, OtherEnvironment, OtherRanks
from search_spaces.plan import Plan
from tests.orchestrator.records import make_plan

PLAN = make_plan()


def changed(**knobs: object) -> Plan:
    return replace(PLAN, **knobs)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_plans_that_differ_in_what_a_model_gets_share_processes(device: str) -> None:
    there = Processes.of(PLAN, device)

    for plan in (changed(zero_stage=3), changed(precision="bf16"), changed(compile=True)):
        assert reason_to_replace(Processes.of(plan, device), there) is None


def test_another_number_of_ranks_needs_others() -> None:
    needed = Processes.of(changed(tensor=2), "cpu")

    reason = reason_to_replace(needed, Processes.of(PLAN, "cpu"))
    assert reason == OtherRanks(needed=2 * PLAN.world_size, present=PLAN.world_size)


@pytest.mark.parametrize(
    ("device", "allocator", "variable"),
    [
        ("cuda", "expandable_segments", "PYTORCH_ALLOC_CONF=expandable_segments:True"),
        ("cpu", "mmap", "MALLOC_MMAP_THRESHOLD_=1048576"),
    ],
)
def test_another_allocator_needs_others_and_back(
    device: str, allocator: str, variable: str
) -> None:
    default, other = (Processes.of(plan, device) for plan in (PLAN, changed(allocator=allocator)))

    reason = reason_to_replace(other, default)
    assert isinstance(reason, OtherEnvironment)
    assert tuple(variable.split("=", 1)) in reason.environment
    assert reason_to_replace(default, other) == OtherEnvironment(environment=default.environment)
    assert reason_to_replace(other, other) is None


def test_workers_that_are_there_are_never_fresh() -> None:
    same = Processes.of(PLAN, "cpu")

    assert reason_to_replace(same, same, fresh=True) == FreshWorkers()
