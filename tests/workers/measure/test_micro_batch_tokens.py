"""Micro-batches that tokens limit: a smaller peak, as is forecast, and faster steps."""

import time
from collections.abc import Mapping
from typing import Any

import pytest

from search_spaces.costs.calibration import shipped_calibration
from search_spaces.costs.forecast import forecast
from search_spaces.costs.plan_encoding import plan_features, variants_of
from search_spaces.costs.workload import workload_of
from search_spaces.hardware.catalogue import find_device
from search_spaces.plan import Plan
from search_spaces.plan_table import PlanTable
from search_spaces.trial import Measured
from tests.workers.launch import Group
from tests.workers.values import LLAMA, a_request, a_spec
from workers.models.built import batch_source
from workers.models.load import build_whole, describe
from workers.tracing.trace import trace

LONG, SAMPLES, STEPS = 512, 16, 12
UNEVEN = a_spec(
    model={**LLAMA, "config": {**LLAMA["config"], "intermediate_size": 1024}},
    data={"lengths": {32: 20, 96: 10, LONG: 1}},
    cluster={"memory_gib": 4.0},
    train={"global_batch": SAMPLES, "sequence_length": LONG},
)
KNOBS: Mapping[str, dict[str, Any]] = {
    "8 samples": {"micro_batch": 8},
    "2 samples": {"micro_batch": 2},
    "1,024 tokens": {"micro_batch": 16, "micro_batch_tokens": 2 * LONG},
}


def cpu_seconds(plan: Plan) -> float:
    """Returns the CPU time of forward and backward passes of a step, which others do not slow."""
    built = build_whole(UNEVEN.model, UNEVEN.train, attention=plan.attention)
    source = batch_source(built, UNEVEN)
    began = time.process_time()
    for step in range(STEPS):
        for batch in source.step(plan, 0, step).batches:
            built.module(**batch.inputs).loss.backward()
    return (time.process_time() - began) / STEPS


@pytest.mark.thorough
def test_the_peak_falls_as_forecast_and_steps_are_faster() -> None:
    """Prints what `docs/knobs.md` says; the resident memory of a rank is measured."""
    group = Group(1, UNEVEN)
    group.return_freed()
    requests = [
        a_request(
            UNEVEN,
            **{"data": 1, "batching": "grouped"},
            **{"accumulation": SAMPLES // knobs["micro_batch"], **knobs},
        )
        for knobs in KNOBS.values()
    ]
    table, device = PlanTable.of([request.plan for request in requests]), find_device("cpu")
    footprint = trace(UNEVEN, variants_of(table))
    features = plan_features(table, describe(UNEVEN.model, UNEVEN.train), footprint)
    calibration = shipped_calibration().for_device(device)
    told = forecast(workload_of(footprint, device, features), calibration, 4e9)
    peaks, seconds = [], []
    for row, (name, request) in enumerate(zip(KNOBS, requests, strict=True)):
        outcome = group.run(request)
        assert isinstance(outcome, Measured), outcome
        peaks.append(outcome.memory.peak_bytes)
        seconds.append(cpu_seconds(request.plan))
        passes = features.accumulation[row]
        print(f"{name}: {peaks[-1] / 1e6:.0f} MB, {seconds[-1]:.3f} s in {passes:.1f} passes")
    group.stop()
    limited, fall = 2, told.peak_bytes[0] - told.peak_bytes[2]

    # memory that is returned at once does not fragment
    assert fall / (1 + calibration.memory.host_fragmentation) < 1.1 * (peaks[0] - peaks[limited])
    assert peaks[0] - peaks[limited] < fall
    assert peaks[limited] == pytest.approx(peaks[1], rel=0.15)  # of two long samples too
    assert peaks[limited] < 0.8 * peaks[0]
    assert seconds[limited] < min(seconds[0], 0.9 * seconds[1])
    assert features.accumulation[limited] < features.accumulation[1] / 2
