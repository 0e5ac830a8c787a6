"""Readings of metrics, against the records they come from."""

from collections import Counter
from dataclasses import replace

import pytest

from orchestrator.core.events import TrialEnded, TrialStarted
from orchestrator.core.reasons import IsBaseline
from orchestrator.core.state import validation_state
from orchestrator.tracking.metrics import LABELS, Reading, event_readings, gauge_readings, metrics
from tests.orchestrator.records import (
    BEGAN,
    make_record,
    make_space,
    make_spec,
    make_state,
    some_plans,
)
from tests.outcomes import every_outcome, make_measured, make_oom

PLANS = some_plans(make_space(make_spec()), 3)


def value(readings: list[Reading], of: str, **labels: str) -> float | None:
    found = [r.value for r in readings if r.metric == f"plimsoll_{of}" and dict(r.labels) == labels]
    assert len(found) <= 1
    return found[0] if found else None


def test_each_outcome_is_counted_once() -> None:
    ends = [
        TrialEnded(record=make_record(n, PLANS[0], outcome), at=BEGAN)
        for n, outcome in enumerate(every_outcome())
    ]
    counted = Counter[str]()
    for end in ends:
        for reading in event_readings(end):
            assert reading.metric == "plimsoll_trials"
            counted[dict(reading.labels)["outcome"]] += int(reading.value)

    assert counted == Counter(outcome.kind for outcome in every_outcome())


@pytest.mark.parametrize(("taken", "told"), [(0.25, [0.25]), (0.0, [0.0]), (None, [])])
def test_an_ask_is_told_where_there_was_one(taken: float | None, told: list[float]) -> None:
    start = TrialStarted(
        number=0,
        plan=PLANS[0],
        reason=IsBaseline(),
        deadline_seconds=60,
        at=BEGAN,
        ask_seconds=taken,
    )

    readings = list(event_readings(start))

    assert [reading.value for reading in readings] == told
    assert all(reading.metric == "plimsoll_ask_seconds" for reading in readings)


def test_what_stands_is_the_best_the_baseline_and_what_ran_out_of_memory() -> None:
    state = make_state(
        [make_measured(20.0), make_oom(), make_measured(50.0, 0.7), make_measured(90.0, 0.99)],
        make_spec(objective={"headroom": 0.05}),
    )
    told = list(gauge_readings(1, state))

    assert value(told, "best_samples_per_second") == 50.0  # the faster one leaves too little free
    assert value(told, "baseline_samples_per_second") == 20.0
    assert value(told, "out_of_memory_share") == 1 / 4
    assert value(told, "best_objective", metric="samples_per_second") == 50.0


def test_what_nobody_knows_is_left_out() -> None:
    told = list(gauge_readings(1, make_state([])))

    known = {"plimsoll_groups", "plimsoll_trials_running", "plimsoll_validation_state"}
    assert {reading.metric for reading in told} == known


def test_a_validation_is_off_open_validated_or_failed() -> None:
    validating = make_spec(validation={"enabled": True, "tries": 1})
    measured = [make_measured(20.0), make_measured(50.0)]
    state = make_state(measured, validating)
    assert state.best is not None
    validation = replace(state.best, validation=True, ended_at=state.best.ended_at + 100)
    fails = replace(validation, outcome=make_oom())

    states = {
        "off": make_state(measured),
        "open": state,
        "validated": replace(state, validations=(validation,)),
        "failed": replace(state, validations=(fails,)),
    }

    assert {name: validation_state(each) for name, each in states.items()} == {n: n for n in states}
    for name, each in states.items():
        told = list(gauge_readings(1, each))
        shown = {s: value(told, "validation_state", state=s) for s in states}
        assert shown == {s: float(s == name) for s in states}


def test_readings_have_the_labels_of_their_metric() -> None:
    state = make_state(list(every_outcome()))
    ends = [TrialEnded(record=record, at=BEGAN, waited_seconds=1) for record in state.records]
    told = [
        *(reading for end in ends for reading in event_readings(end)),
        *gauge_readings(1, state),
    ]

    labels = {metric.name: metric.labels for metric in metrics()}
    assert all(tuple(name for name, _ in r.labels) == labels[r.metric] for r in told)
    assert {r.metric for r in told} | {"plimsoll_ask_seconds"} == set(labels)
    assert not any(set(own) & set(LABELS) for own in labels.values())
