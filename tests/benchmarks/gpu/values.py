"""Outcomes, rows and trials, each with what a test wants to be special."""

from dataclasses import replace
from typing import Any

from benchmarks.gpu.worker import Trial
from search_spaces.plan import Plan
from search_spaces.trial import Costs, Estimate, Measured, Outcome, OutOfMemory
from tests.outcomes import CPU_FINGERPRINT, make_conditions, make_measured
from tests.plans import ddp_plan

GIB = 2**30


def a_plan(**knobs: Any) -> Plan:
    return ddp_plan(**{"data": 1} | knobs)


def measured(*, seconds: float = 2.0, peak: int = 3 * GIB, flops: float | None = 4e12) -> Measured:
    rate = Estimate(value=16 / seconds, low=16 / seconds, high=16 / seconds)
    made = make_measured(
        16 / seconds,
        samples_per_second=rate,
        step_seconds=Estimate(value=seconds, low=seconds, high=seconds),
        mfu=0.5,
        flops_per_step=flops,
        conditions=replace(make_conditions(), device_memory_bytes=peak + 1),
        costs=costs(build=1.0, steps=5.0),
    )
    memory = replace(
        made.memory,
        rank=0,
        limit_bytes=8 * GIB,
        peak_bytes=peak,
        reserved_bytes=peak - GIB,
        anatomy=replace(made.memory.anatomy, outside=GIB),
    )
    return replace(made, memory=memory)


def costs(*, build: float = 0.0, steps: float = 0.0, residual: int = 0) -> Costs:
    return Costs(
        build_seconds=build, steps_seconds=steps, total_seconds=9.0, residual_bytes=residual
    )


def out_of_memory(**special: Any) -> OutOfMemory:
    usual = OutOfMemory(
        where="device",
        wanted_bytes=9 * GIB,
        limit_bytes=8 * GIB,
        rank=0,
        phase="forward",
        detail="OutOfMemoryError",
        costs=costs(),
    )
    return replace(usual, **special)


def trial(outcome: Outcome) -> Trial:
    return Trial(outcome=outcome, fingerprint=CPU_FINGERPRINT, started_at=100.0, ended_at=110.0)
