"""Secrets in messages of libraries reach neither the study nor any listener of a sweep."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from orchestrator.core.notes import Message
from orchestrator.report.live import PlainView
from orchestrator.report.page_data import ReportData
from orchestrator.report.sweep_page import report_page
from orchestrator.report.sweep_text import render_report
from orchestrator.tracking.events import line_of, to_json
from orchestrator.tracking.mlflow_fields import trial_tags
from search_spaces.trial import Crashed
from tests.orchestrator.controller.sweeps import PlayedCluster, Sweep, make_nodes
from tests.orchestrator.records import make_spec
from tests.outcomes import make_measured

VALUE = "0123456789abcdef-of-a-variable"
TEXT = (
    "could not reach postgresql://ann:S3CRET@db/x or https://x?token=S3CRET&a=1:"
    f" password=S3CRET, api_key: S3CRET, {VALUE}"
)


@pytest.fixture
def finished(tmp_path: Path) -> tuple[Sweep, str]:
    """A sweep whose first trial crashes with secrets, and all that its log says."""
    log = io.StringIO()
    spec = make_spec(study={"folder": str(tmp_path), "sampler": "random"}, budget={"trials": 3})
    sweep = Sweep(
        spec,
        PlayedCluster(make_nodes("a")),
        callbacks=(PlainView(log),),
        secrets=(VALUE,),
    )
    crashed = Crashed(
        cause="worker_died", rank=0, phase="build", detail=TEXT, trace=f"Traceback\n{TEXT}"
    )
    sweep.controller.note(Message(text=TEXT))
    sweep.run(iter([crashed, crashed, make_measured(), make_measured()]))
    return sweep, log.getvalue()


def test_s5_no_listener_and_no_record_has_them(finished: tuple[Sweep, str]) -> None:
    sweep, log = finished
    state = sweep.state
    said = io.StringIO()
    render_text(said, state)
    page = report_page(ReportData(state=state, context=None, note=""))
    events = [to_json(line_of(event, at)) for event, at in sweep.recorder.heard]
    tags = [trial_tags(record, state.spec, "demo") for record in state.records]
    everything = {
        "study": repr(sweep.study.records()),
        "log": log,
        "report": said.getvalue(),
        "page": page,
        "events": "\n".join(events),
        "mlflow": repr(tags),
        "decisions": repr(sweep.decisions),
    }

    for name, text in everything.items():
        assert "S3CRET" not in text, name
        assert VALUE not in text, name
        assert "postgresql://ann:***@db/x" in text, name
    assert any('"why"' in line or '"reason"' in line for line in events)


def render_text(out: io.StringIO, state: object) -> None:
    """Writes the report as a terminal shows it."""
    from rich.console import Console

    Console(file=out, width=300).print(render_report(state, ""))  # type: ignore[arg-type]
