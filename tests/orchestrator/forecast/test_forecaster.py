"""Forecasts of a traced model, and their calibration by records."""

import math
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orchestrator.core.events import SweepStarted
from orchestrator.core.objective import Objective
from orchestrator.core.records import Record
from orchestrator.core.state import SweepState, begin
from orchestrator.forecast.calibration import Footprints
from orchestrator.forecast.forecaster import Forecaster, TracedForecasts, device_of_workers
from orchestrator.sweep import sweep_space
from search_spaces.costs.calibration import shipped_calibration
from search_spaces.costs.footprint import Footprint
from search_spaces.costs.plan_encoding import variants_of
from search_spaces.errors import UserError
from search_spaces.facts import ClusterFacts, ModelFacts
from search_spaces.hardware.catalogue import find_device
from search_spaces.hardware.device import BlockLaunches
from search_spaces.hardware.properties import DeviceProperties
from search_spaces.plan import Plan
from search_spaces.space import Space
from search_spaces.specification.schema import GIB, SweepSpec
from search_spaces.trial import PlanForecast
from tests.orchestrator.records import BEGAN, make_record, make_spec
from tests.outcomes import CPU_FINGERPRINT, LIMIT_BYTES, make_measured
from tests.workers.values import LLAMA
from workers.models.load import describe
from workers.tracing.trace import trace

SPEC = make_spec(
    model=LLAMA, space={"zero_stage": [0, 3], "micro_batch": [1, 2, 4, 8], "attention": ["sdpa"]}
)
CLUSTER = ClusterFacts(device="cpu", slots=2, memory_limit_bytes=LIMIT_BYTES)
SLOWER, FULLER = 3.0, 1.5  # than the shipped calibration expects: this machine is another


@pytest.fixture(scope="module")
def model() -> ModelFacts:
    return describe(SPEC.model, SPEC.train)


@pytest.fixture(scope="module")
def space(model: ModelFacts) -> Space:
    return sweep_space(SPEC, model, CLUSTER)


@pytest.fixture(scope="module")
def footprint(space: Space, tmp_path_factory: pytest.TempPathFactory) -> Footprint:
    wanted = variants_of(space.table)
    return trace(SPEC, wanted, device="cpu", cache=tmp_path_factory.mktemp("footprints"))


@pytest.fixture(autouse=True)
def _no_devices_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


@pytest.fixture
def forecaster(model: ModelFacts, footprint: Footprint) -> Forecaster:
    return Forecaster(
        model=model,
        device=find_device("cpu"),
        footprint=footprint,
        calibration=shipped_calibration(),
    )


def expected(forecaster: Forecaster, plan: Plan, records: Sequence[Record] = ()) -> PlanForecast:
    found = forecaster.expectation(plan, records, LIMIT_BYTES)
    assert found is not None
    return found


def measured_as(forecaster: Forecaster, plans: Sequence[Plan]) -> list[Record]:
    """Equal records of a machine that is `SLOWER` and `FULLER` than forecast."""
    records = []
    for number, plan in enumerate(plans):
        before = expected(forecaster, plan)
        rate = before.samples_per_second.value / SLOWER
        share = FULLER * before.peak_bytes.value / LIMIT_BYTES
        records.append(make_record(number, plan, make_measured(rate, share)))
    return records


def test_the_prior_is_relative_to_a_stated_peak(forecaster: Forecaster, space: Space) -> None:
    stated = Objective(headroom=0.5, memory_bytes=LIMIT_BYTES / 8)  # the half of a quarter
    priors = [forecaster.prior(space.table, LIMIT_BYTES, each) for each in (Objective(), stated)]
    whole, quarter = (each.log_share for each in priors if each is not None)

    np.testing.assert_allclose(quarter - whole, np.log(4))


def test_a_sweep_searches_mixes_for_a_stated_peak() -> None:
    deep = LLAMA | {"config": LLAMA["config"] | {"num_hidden_layers": 6}}
    space = {"zero_stage": [0], "micro_batch": [8], "attention": ["sdpa"]}

    def searched(**objective: float) -> Space:
        spec = make_spec(model=deep, space=space, objective={"headroom": 0.0} | objective)
        return sweep_space(spec, describe(spec.model, spec.train), CLUSTER)

    usual = searched()
    peaks = forecast_peaks(make_spec(model=deep), usual)
    stated = sum(peaks) / 2  # of all blocks kept, and all recomputed

    found = searched(memory_gib=stated / GIB)

    mixes = [plan for plan in found.table if plan not in usual.table]
    assert mixes
    assert len(found.table) == len(usual.table) + len(mixes)
    assert not [plan for plan in mixes if plan.checkpoint_offload or plan.offloaded_blocks]
    for name, values in found.domains:
        assert {getattr(plan, name) for plan in mixes} <= set(values)


def forecast_peaks(spec: SweepSpec, space: Space) -> list[float]:
    """Returns the peaks of the plan without recomputation, and of the one with the most."""
    footprint = Footprints(spec, "cpu", run_code=True)(variants_of(space.table))
    model, device = describe(spec.model, spec.train), find_device("cpu")
    made = Forecaster(
        model=model, device=device, footprint=footprint, calibration=shipped_calibration()
    )
    ratios = space.table.column("checkpoint_ratio")
    plans = [space.table.plan(int(at)) for at in (ratios.argmin(), ratios.argmax())]
    return [expected(made, plan).peak_bytes.value for plan in plans]


def test_records_correct_the_forecasts_of_other_plans(forecaster: Forecaster, space: Space) -> None:
    plans = list(space.candidates)
    records = measured_as(forecaster, plans[::7])
    other = plans[3]
    assert all(record.plan != other for record in records)
    before, after = expected(forecaster, other), expected(forecaster, other, records)

    assert after.calibration_trials == len(records)
    speed = after.samples_per_second.value / before.samples_per_second.value
    assert speed == pytest.approx(1 / SLOWER, rel=0.15)
    memory = after.peak_bytes.value / before.peak_bytes.value
    assert memory == pytest.approx(FULLER, rel=0.15)
    assert _width(after) < _width(before)


def test_a_plan_that_was_not_traced_has_no_forecast_and_teaches_none(
    forecaster: Forecaster, space: Space
) -> None:
    eager = replace(space.baseline, attention="eager")

    assert forecaster.expectation(eager, (), LIMIT_BYTES) is None
    old = [make_record(0, eager, make_measured())]
    assert expected(forecaster, space.baseline, old).calibration_trials == 0


def _width(found: PlanForecast) -> float:
    rate = found.samples_per_second
    return math.log(rate.high / rate.low)


def state_of(space: Space, records: Sequence[Record] = ()) -> SweepState:
    return begin(
        SweepStarted(
            study="demo",
            spec=SPEC,
            space=space,
            records=tuple(records),
            memory_limit_bytes=LIMIT_BYTES,
            at=BEGAN,
        )
    )


def forecasts_of(
    model: ModelFacts, found: Footprint | None, cluster: ClusterFacts = CLUSTER
) -> TracedForecasts:
    return TracedForecasts(SPEC, model, cluster, shipped_calibration(), lambda: found)


@pytest.mark.parametrize(
    ("changes", "teach"),
    [
        ({"device_name": "another processor"}, False),
        ({"environment": (("MALLOC_ARENA_MAX", "1"),)}, False),
        ({"environment": ()}, True),  # unknown
        ({"hosts": 2}, True),
    ],
)
def test_records_of_another_device_or_environment_teach_nothing(
    model: ModelFacts,
    footprint: Footprint,
    space: Space,
    forecaster: Forecaster,
    changes: dict[str, Any],
    teach: bool,
) -> None:
    there = replace(CPU_FINGERPRINT, environment=(("MALLOC_ARENA_MAX", ""),))
    measured = measured_as(forecaster, list(space.candidates)[::7])
    records = [replace(record, fingerprint=there) for record in measured]
    state = replace(state_of(space, records), fingerprint=replace(there, **changes))
    found = forecasts_of(model, footprint).expectation(space.baseline, state)

    assert found is not None
    assert found.calibration_trials == len(records) * teach


def test_a_gpu_is_waited_for_until_workers_tell_which(
    model: ModelFacts, footprint: Footprint, space: Space
) -> None:
    forecasts = forecasts_of(model, footprint, replace(CLUSTER, device="cuda"))
    assert forecasts.expectation(space.baseline, state_of(space)) is None

    h100 = replace(CPU_FINGERPRINT, device="cuda", device_name="NVIDIA H100 80GB HBM3")
    told = replace(state_of(space), fingerprint=h100)
    found = forecasts.expectation(space.baseline, told)
    on_cpu = forecasts_of(model, footprint).expectation(space.baseline, state_of(space))
    assert found is not None
    assert on_cpu is not None
    assert found != on_cpu

    moved = replace(told, fingerprint=replace(h100, device_name="Tesla V100-SXM2-32GB"))
    assert forecasts.expectation(space.baseline, moved) not in (None, found, on_cpu)


@pytest.mark.parametrize(("kind", "name"), [("cpu", "x86_64"), ("cuda", "NVIDIA H100 80GB HBM3")])
def test_a_device_has_the_launches_that_its_workers_measured(kind: str, name: str) -> None:
    launches = BlockLaunches(
        block_launch_seconds=1e-5, recomputed_launch_seconds=2e-5, compiled_launch_seconds=3e-6
    )
    seen = replace(CPU_FINGERPRINT, device=kind, device_name=name, launches=launches)
    found = device_of_workers(SPEC, replace(CLUSTER, device=kind), seen)

    assert found is not None
    assert launches == BlockLaunches(
        **{field.name: getattr(found, field.name) for field in fields(BlockLaunches)}
    )


def test_an_unknown_gpu_is_forecast_from_its_properties_with_a_wide_interval(
    model: ModelFacts, footprint: Footprint, space: Space
) -> None:
    properties = DeviceProperties(
        compute_capability=(9, 0),
        multiprocessors=132,
        clock_hertz=1.83e9,
        memory_clock_hertz=2.619e9,
        memory_bus_bits=5120,
    )
    h100, unknown = (
        replace(CPU_FINGERPRINT, device="cuda", device_name=name, properties=properties)
        for name in ("NVIDIA H100 PCIe", "NVIDIA H99")
    )
    cluster = replace(CLUSTER, device="cuda")
    known, found = (
        forecasts_of(model, footprint, cluster).expectation(
            space.baseline, replace(state_of(space), fingerprint=fingerprint)
        )
        for fingerprint in (h100, unknown)
    )
    assert found is not None
    assert known is not None
    speed = found.samples_per_second
    assert speed.high > 1.95 * speed.value > 1.95 * 1.95 * speed.low
    assert _width(found) > 1.2 * _width(known)

    nothing = forecasts_of(model, footprint, cluster)
    fingerprint = replace(unknown, properties=None)
    assert not nothing.expectation(
        space.baseline, replace(state_of(space), fingerprint=fingerprint)
    )
    assert "unknown device 'NVIDIA H99'" in (nothing.problem() or "")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (UserError("aten.nonzero needs values"), "aten.nonzero needs values"),
        (ZeroDivisionError("by zero"), "ZeroDivisionError: by zero"),  # forecasts alone end
    ],
)
def test_a_model_that_cannot_be_traced_is_told_once(
    error: Exception, words: str, model: ModelFacts, space: Space
) -> None:
    def poll() -> Footprint | None:
        raise error

    forecasts = TracedForecasts(SPEC, model, CLUSTER, shipped_calibration(), poll)

    assert forecasts.expectation(space.baseline, state_of(space)) is None
    assert forecasts.problem() == words
    assert forecasts.expectation(space.baseline, state_of(space)) is None
    assert forecasts.problem() is None
