"""Events as lines of JSON."""

import io
import json
import re
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from orchestrator.core.events import Event, TrialEnded, TrialStarted
from orchestrator.core.objective import best
from orchestrator.core.state import SweepState
from orchestrator.tracking.events import VERSION, EventStream, line_of, line_of_activity
from search_spaces.trial import Activity, ActivityKind, Measured
from tests.orchestrator.records import BEGAN, make_records, make_space, make_spec, sweep
from tests.outcomes import every_outcome, make_expectation

DOCS = Path(__file__).parents[3] / "docs" / "observability.md"
SPEC = make_spec(tracking={"experiment": "team"})
KINDS = {"sweep_started", "group_started", "trial_started", "trial_ended", "noted", "sweep_ended"}
MEASURING = Activity(kind=ActivityKind.MEASURING, trial=0, samples_per_second=None, at=BEGAN)
RECORDS = make_records(make_space(SPEC), every_outcome())


def a_sweep() -> list[tuple[Event, SweepState]]:
    """Returns events of each kind, with times to ask and to wait."""
    told = []
    for event, state in sweep(SPEC, make_space(SPEC), RECORDS):
        match event:
            case TrialStarted():
                forecast = make_expectation(rate=39.0)
                told.append((replace(event, ask_seconds=0.25, forecast=forecast), state))
            case TrialEnded():
                told.append((replace(event, waited_seconds=1.5), state))
            case _:
                told.append((event, state))
    return told


def test_lines_hold_what_the_records_hold() -> None:
    lines = [line_of(event, state) for event, state in a_sweep()]
    ends = [line for line in lines if line["event"] == "trial_ended"]
    top = best(RECORDS, a_sweep()[-1][1].objective)
    assert top is not None

    assert [line["trial"] for line in ends] == [record.number for record in RECORDS]
    assert [line["plan_key"] for line in ends] == [record.plan.key for record in RECORDS]
    assert [line["outcome"] for line in ends] == [record.outcome.kind for record in RECORDS]
    for line, record in zip(ends, RECORDS, strict=True):
        assert line["seconds"] == record.ended_at - record.started_at
        assert line["waited_seconds"] == 1.5
        rate = record.outcome.samples_per_second if isinstance(record.outcome, Measured) else None
        assert line["samples_per_second"] == (rate and rate.value)
    assert (ends[-1]["best_trial"], ends[-1]["best_plan_key"]) == (top.number, top.plan.key)
    started = next(line for line in lines if line["event"] == "trial_started")
    assert (started["ask_seconds"], started["forecast_samples_per_second"]) == (0.25, 39.0)


def test_a_line_is_flat_json_with_a_time_in_utc() -> None:
    stream = io.StringIO()
    log = EventStream(stream, "demo")
    log.on_activity(MEASURING)
    for event, state in a_sweep():
        log.on_event(event, state)
    log.close()

    kinds = set()
    shown = [MEASURING, *(event for event, _ in a_sweep())]
    for text, event in zip(stream.getvalue().splitlines(), shown, strict=True):
        told = json.loads(text)
        kinds.add(told["event"])
        assert text.isascii()
        assert not any(isinstance(value, dict | list) for value in told.values())
        assert (told["version"], told["study"]) == (VERSION, "demo")
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", told["time"])
        assert datetime.fromisoformat(told["time"]) == datetime.fromtimestamp(event.at, UTC)
    assert kinds == KINDS | {"activity"}


def test_the_documentation_has_a_row_for_each_field() -> None:
    text = DOCS.read_text(encoding="utf-8")
    common = {"version", "time", "study", "event"}
    lines = {line["event"]: line for line in (line_of(*each) for each in a_sweep())}
    lines["activity"] = line_of_activity(MEASURING, "demo")
    for name, line in lines.items():
        rows = text.partition(f"\n### `{name}`\n")[2].partition("\n##")[0]
        documented = set(re.findall(r"^- `(\w+)`:", rows, re.MULTILINE))
        assert documented == line.keys() - common, name
    shared = text.partition("\n## Events as lines of JSON\n")[2].partition("\n### ")[0]
    assert set(re.findall(r"^- `(\w+)`:", shared, re.MULTILINE)) == common
