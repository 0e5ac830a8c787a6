"""A study on eight GPUs, with forecasts from a footprint made by hand."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from orchestrator.core.records import Record
from orchestrator.core.state import SweepState
from orchestrator.explain.context import ForecastContext
from orchestrator.forecast.table import forecast_table
from orchestrator.study.reader import stored_state
from search_spaces.plan import Plan
from search_spaces.specification.schema import GIB
from search_spaces.trial import Measured, MemoryReading, Outcome, OutOfMemory
from tests.orchestrator.forecast.values import a_calibration, a_footprint, a_question, a_spec
from tests.orchestrator.records import make_record
from tests.outcomes import make_measured, make_oom
from tests.plans import ddp_plan

LIMIT = 80 * GIB
SPACE = {
    "zero_stage": [2, 3],
    "micro_batch": [1, 2, 4],
    "checkpoint_ratio": [0.0, 0.5, 1.0],
    "attention": ["sdpa"],
    "checkpoint_mode": ["full"],
    "compile": [False],
    "tensor": [1],
    "offload_optimizer": ["none"],
    "offload_parameters": ["none"],
}


def a_plan(**knobs: Any) -> Plan:
    """Returns FSDP2 on eight ranks, micro-batch 1, no recomputation, with `knobs` changed."""
    micro = knobs.get("micro_batch", 1)
    usual = {"zero_stage": 3, "micro_batch": micro, "accumulation": 8 // micro, "data": 8}
    return ddp_plan(**usual | {"precision": "bf16"} | knobs)


def measured(rate: float, gib: float) -> Measured:
    """Returns a measurement of this speed ± 1.5 %, and a peak of this many of 80 GiB."""
    made = make_measured(rate, 0.5)
    memory: MemoryReading = replace(made.memory, peak_bytes=int(gib * GIB), limit_bytes=LIMIT)
    return replace(made, memory=memory)


def out_of_memory(gib: float | None) -> OutOfMemory:
    """Returns an out-of-memory outcome that requested this many of 80 GiB."""
    wanted = None if gib is None else int(gib * GIB)
    return make_oom(wanted_bytes=wanted, limit_bytes=LIMIT)


def a_state(
    tried: Sequence[tuple[Plan, Outcome]], validations: Sequence[Record] = (), **sections: Any
) -> SweepState:
    """Returns a study of these trials, numbered in order."""
    spec = a_spec(**{"space": SPACE, "validation": {"enabled": False}, **sections})
    return stored_state(spec, "demo", records_of(tried), tuple(validations))


def records_of(tried: Sequence[tuple[Plan, Outcome]]) -> tuple[Record, ...]:
    return tuple(make_record(number, *each) for number, each in enumerate(tried))


def a_ground(state: SweepState) -> ForecastContext:
    """Returns the uncalibrated forecasts of a study."""
    question = replace(a_question(spec=state.spec), limit_bytes=LIMIT)
    return ForecastContext(
        state=state,
        calibration=a_calibration(),
        trace=a_footprint,
        forecasts=forecast_table(question, 8, a_footprint, a_calibration()),
    )
