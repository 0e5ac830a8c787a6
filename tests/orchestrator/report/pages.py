"""A page of every kind, with names that try to inject markup, and readers of pages."""

import json
import re
from dataclasses import replace
from typing import Any

from orchestrator.core.reasons import Promising
from orchestrator.core.records import Record
from orchestrator.core.state import SweepState
from orchestrator.forecast.planner import Planner
from orchestrator.report.plan_document import render_plan_page
from orchestrator.report.sweep_document import report_page
from search_spaces.specification.schema import GIB
from tests.orchestrator.explain.values import a_ground, a_state, out_of_memory
from tests.orchestrator.forecast.values import a_calibration, a_footprint, a_question, facts
from tests.orchestrator.report.values import ANSWER, START, TRIED, validated
from tests.outcomes import every_outcome, make_expectation

HOSTILE = """<!--<script></script><script>\
pwned = 1</script><img src=x onerror="pwned = 1">"'&lt;{{ 7 * 7 }}"""


def every_page() -> dict[str, str]:
    """Makes pages by name; together they have every chart."""
    forecasts = expected(hostile(a_state([*TRIED, *((ANSWER, one) for one in every_outcome())])))
    report = hostile(validated((3.0, 2.0, 1.0)))
    nothing_fits = hostile(a_state([(START, out_of_memory(90)), (ANSWER, out_of_memory(None))]))
    return {
        "sweep": report_page(forecasts, a_ground(forecasts)),
        "validated": report_page(report, note=HOSTILE),
        "no answer": report_page(nothing_fits),
        "plan": plan_page((8, 16)),
        "no plan": plan_page((1,), limit_bytes=GIB),
    }


def hostile(state: SweepState) -> SweepState:
    """Returns the sweep with every free name replaced by `HOSTILE`."""
    model = state.spec.model.model_copy(update={"name": HOSTILE})
    spec = state.spec.model_copy(update={"model": model})
    return replace(
        state,
        study=HOSTILE,
        spec=spec,
        records=tuple(map(renamed, state.records)),
        validations=tuple(map(renamed, state.validations)),
    )


def renamed(record: Record) -> Record:
    assert record.fingerprint is not None
    seen = replace(record.fingerprint, device_name=HOSTILE)
    return replace(record, reason=Promising(fits=0.5, measured_by=HOSTILE), fingerprint=seen)


def expected(state: SweepState) -> SweepState:
    """Returns the sweep with a forecast for each trial."""
    forecast = make_expectation(40.0)
    records = tuple(replace(record, forecast=forecast) for record in state.records)
    return replace(state, records=records)


def plan_page(ranks: tuple[int, ...], **fields: Any) -> str:
    question = a_question(ranks, model=facts(name=HOSTILE), **fields)
    return render_plan_page(Planner(question, a_footprint, a_calibration()).plan())


def figures_of(page: str) -> dict[str, Any]:
    """Returns the data of the charts of a page."""
    found = re.search(r'<script type="application/json" id="figures">(.*?)</script>', page, re.S)
    assert found is not None
    figures: dict[str, Any] = json.loads(found.group(1))
    return figures


def words_of(page: str) -> str:
    """Returns the text of a page without its charts."""
    body = page.split("<main>")[1].split("</main>", maxsplit=1)[0]
    return " ".join(re.sub(r"<[^>]*>", " ", body).split())
