"""Calibration of forecasts by a study on disk."""

from pathlib import Path

import pytest

from orchestrator.api import find_study
from orchestrator.forecast.calibration import calibrated_by_study, study_device
from orchestrator.forecast.forecaster import Forecaster
from orchestrator.study.reader import load_state
from orchestrator.study.study import Study
from orchestrator.sweep import sweep_space
from search_spaces.costs.calibration import Calibration, shipped_calibration
from search_spaces.costs.plan_encoding import variants_of
from search_spaces.facts import ClusterFacts
from search_spaces.hardware.catalogue import find_device
from search_spaces.specification.load import spec_to_yaml
from search_spaces.specification.schema import SweepSpec
from tests.orchestrator.records import PROPOSED, make_record, make_spec
from tests.orchestrator.study.values import next_plan
from tests.outcomes import LIMIT_BYTES, make_measured
from workers.models.load import describe
from workers.tracing.trace import trace

CLUSTER = ClusterFacts(device="cpu", slots=2, memory_limit_bytes=LIMIT_BYTES)


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SweepSpec:
    """Specification of a study `slow`, whose two trials took an hour for a step."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    small = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    small |= {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 500}
    spec = make_spec(model={"name": "llama-3.2-1b", "config": small})
    space = sweep_space(spec, describe(spec.model, spec.train), CLUSTER)
    study = Study(spec, "slow", space)
    for _ in range(2):
        plan = next_plan(study)
        number = study.ask(plan, PROPOSED)
        outcome = make_measured(16 / 3600)
        study.tell(make_record(number, plan, outcome))
    Path("slow.yaml").write_text(spec_to_yaml(spec))
    return spec


def speed(spec: SweepSpec, calibration: Calibration) -> float:
    """Forecast samples per second of the baseline."""
    model = describe(spec.model, spec.train)
    table = sweep_space(spec, model, CLUSTER).table
    footprint = trace(spec, variants_of(table), device="cpu")
    forecaster = Forecaster(
        model=model, device=find_device("cpu"), footprint=footprint, calibration=calibration
    )
    found = forecaster.expectation(table.plan(0), (), LIMIT_BYTES)
    assert found is not None
    return found.samples_per_second.value


def test_a_study_of_slow_trials_makes_forecasts_slower(spec: SweepSpec) -> None:
    before = shipped_calibration()
    slow = find_study("slow.yaml")
    state = load_state(slow.spec, slow.name)
    after = calibrated_by_study(before, state, study_device(slow.spec, state.records))

    assert speed(spec, after) < speed(spec, before) / 10
