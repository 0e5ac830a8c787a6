"""The planner on a model worked out by hand: recommendations, and reasons why nothing fits."""

import json
from dataclasses import asdict, fields, replace
from typing import Any

import pytest

from orchestrator.forecast.planner import Planner, PlanningReport
from orchestrator.forecast.planning_notes import (
    AssumedRates,
    UnshownDevice,
    UnsupportedPrecision,
    VaryingLengths,
)
from orchestrator.forecast.request import RECOMMENDED_FIT_PROBABILITY, PlanningRequest
from orchestrator.forecast.table import ForecastRow, ForecastTable, forecast_table
from orchestrator.report.document import planning_document
from search_spaces.errors import SpecError, UserError
from search_spaces.hardware.catalogue import known_device
from search_spaces.rules.registry import refusal
from search_spaces.specification.schema import GIB
from tests.orchestrator.forecast.values import (
    TOKENS,
    a_calibration,
    a_footprint,
    a_question,
    a_spec,
)


def sized(question: PlanningRequest, ranks: int = 8) -> ForecastTable:
    return forecast_table(question, ranks, a_footprint, a_calibration())


def planned(**fields: Any) -> PlanningReport:
    return Planner(a_question(**fields), a_footprint, a_calibration()).plan()


@pytest.fixture(scope="module")
def answer() -> PlanningReport:
    return planned(ranks=(8, 16), price_per_hour=2.0)


def test_what_rests_on_rates_of_a_typical_network_is_named() -> None:
    """This step has next to no launches, and offloads nothing."""
    inside, across, measured = (
        planned(device=replace(a_question().device, node_devices=node, measured=known))
        for node, known in ((8, False), (4, False), (4, True))
    )

    (note,) = (one for one in across.notes if isinstance(one, AssumedRates))
    assert note.terms == ("data_collectives",)
    assert across.best is not None
    seconds = dict(across.best.seconds)
    assert note.share == pytest.approx(seconds["data_collectives"] / sum(seconds.values()))
    assert inside.notes == measured.notes == ()


@pytest.mark.parametrize("name", ["TPU v4", "TPU v5e", "TPU v5p", "TPU v6e", "TPU v7"])
def test_a_tpu_is_planned_and_called_not_shown(name: str) -> None:
    """Eight TPUs of four in a host still have ICI, which is in the data sheet."""
    tpu, other = (planned(gpu=each) for each in (name, "H100"))

    assert tpu.notes == (UnshownDevice(device=name),)
    assert UnshownDevice(device="H100") not in other.notes
    assert a_question(gpu=name).rule_context(8).cluster.device == "tpu"
    rates = [one.best.forecast.samples_per_second.value for one in (tpu, other) if one.best]
    peaks = [known_device(each).bf16_flops_per_second for each in (name, "H100")]
    assert rates[0] / rates[1] == pytest.approx(peaks[0] / peaks[1], rel=0.6)


def test_recommends_the_fastest_of_all_that_keep_the_line(answer: PlanningReport) -> None:
    whole = sized(a_question())
    told = whole.forecasts

    fastest = told.samples_per_second[
        whole.hosted
        & (told.fits >= RECOMMENDED_FIT_PROBABILITY)
        & (told.peak_bytes <= whole.request.line_bytes)
    ].max()

    assert answer.best is not None
    assert answer.best.forecast.samples_per_second.value == pytest.approx(fastest)
    assert answer.best.keeps_headroom
    assert refusal(answer.best.plan, a_question().rule_context(8)) is None
    speeds = [told.forecast.samples_per_second.value for told in answer.recommendation.best]
    assert speeds == sorted(speeds, reverse=True)
    edge = [
        (told.forecast.peak_bytes.value, told.forecast.samples_per_second.value)
        for told in answer.front
    ]
    assert edge == sorted(edge)
    assert [rate for _, rate in edge] == sorted(rate for _, rate in edge)


def test_parts_add_up_to_the_whole(answer: PlanningReport) -> None:
    for told in (*answer.recommendation.best, *answer.front):
        assert sum(seconds for _, seconds in told.seconds) == pytest.approx(
            told.forecast.step_seconds.value
        )
        assert sum(size for _, size in told.held_bytes) == pytest.approx(
            told.forecast.peak_bytes.value
        )
        rate = told.plan.global_batch / told.forecast.step_seconds.value
        speed = told.forecast.samples_per_second
        assert speed.value == pytest.approx(rate)
        assert speed.low < rate < speed.high


def test_prices_are_those_of_the_devices_hours(answer: PlanningReport) -> None:
    for size in answer.device_counts:
        assert size.best
        rate = size.best[0].forecast.samples_per_second.value
        hours = 1e9 / (rate * answer.tokens) / 3600
        assert size.price_per_billion_tokens == pytest.approx(hours * size.ranks * 2.0)


def test_a_document_has_a_flat_row_for_each_plan_without_what_only_sweeps_know(
    answer: PlanningReport,
) -> None:
    best = answer.best
    assert best is not None

    row = planning_document(answer)["recommendation"]["best"][0]

    names = {field.name for field in fields(ForecastRow)} - {"forecast"}
    shared = {"samples_per_second", "step_seconds", "peak_bytes", "fits", "limited_by"}
    shared |= {"host_bytes"}
    assert row.keys() == names | shared
    assert row["plan"] == best.plan.as_dict()
    assert row["peak_bytes"] == asdict(best.forecast.peak_bytes)
    assert row["fits"] == best.forecast.fits


def test_every_value_of_a_report_is_json() -> None:
    spec = a_spec(data={"lengths": {128: 5, TOKENS: 1}})
    noted = planned(ranks=(16,), gpu="V100-32", spec=spec)

    assert [type(note) for note in noted.notes] == [
        UnsupportedPrecision,
        AssumedRates,
        VaryingLengths,
    ]
    assert [note["kind"] for note in planning_document(noted)["notes"]] == [
        note.kind for note in noted.notes
    ]
    for report in (noted, planned(limit_bytes=GIB)):
        document = planning_document(report)
        assert document.keys() == {field.name for field in fields(PlanningReport)}
        assert json.loads(json.dumps(document, allow_nan=False))["model"] == report.model


def test_where_nothing_fits_the_plan_with_the_smallest_peak_is_named() -> None:
    told = planned(limit_bytes=GIB)

    nearest = told.recommendation.nearest
    assert told.best is None
    assert nearest is not None
    smallest = sized(a_question(limit_bytes=GIB)).forecasts.peak_bytes.min()
    assert nearest.forecast.peak_bytes.value == pytest.approx(smallest)
    assert planned().recommendation.nearest is None


def test_a_count_on_which_no_plan_is_legal_is_told_and_not_raised() -> None:
    told = planned(ranks=(8, 7))

    (seven,) = (size for size in told.device_counts if size.ranks == 7)
    (reason,) = seven.refusals
    assert "global batch" in reason or "no plan can meet it" in reason
    assert all(size.refusals == () for size in told.device_counts if size.plans)
    with pytest.raises(SpecError):
        planned(ranks=(7,))


def test_explains_a_plan_that_is_legal_and_refuses_another() -> None:
    planner = Planner(a_question(), a_footprint, a_calibration())
    best = planner.plan().best
    assert best is not None

    told = planner.explain(best.plan)

    rate = best.forecast.samples_per_second.value
    assert told.expected.forecast.samples_per_second.value == pytest.approx(rate)
    assert sum(term.amount for term in told.time) == pytest.approx(best.forecast.step_seconds.value)
    assert sum(term.amount for term in told.memory) == pytest.approx(best.forecast.peak_bytes.value)
    with pytest.raises(UserError, match="global_batch_is_kept"):
        planner.explain(type(best.plan).from_dict(best.plan.as_dict() | {"accumulation": 999}))
