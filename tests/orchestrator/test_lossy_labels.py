"""Labels of lossy plans, wherever a report, a run or an export shows one as the best."""

import io
from collections.abc import Callable
from dataclasses import replace

import pytest
from rich.console import Console, RenderableType

from orchestrator.core.events import TrialStarted
from orchestrator.core.reasons import IsBaseline
from orchestrator.core.state import SweepState
from orchestrator.explain.trial import explain_trial
from orchestrator.explain.winner import explain_best
from orchestrator.export.bundle import readme
from orchestrator.export.formats import export_bundle
from orchestrator.export.inputs import collect_inputs
from orchestrator.export.source import ExportSource
from orchestrator.report.explain_text import explanation_text
from orchestrator.report.labels import may_be_lossy
from orchestrator.report.live import dashboard, lines
from orchestrator.report.sweep_document import render_report, report_page
from orchestrator.report.terminal import render_text
from orchestrator.tracking.mlflow_artifacts import best_markdown
from orchestrator.tracking.mlflow_fields import sweep_tags, trial_tags
from orchestrator.tracking.mlflow_view import view_state
from tests.orchestrator.export.folders import taken_of
from tests.orchestrator.records import BEGAN, make_plan, make_space, make_spec, make_state
from tests.outcomes import make_measured

SPEC = make_spec(space={"precision": ["fp32", "bf16"], "attention": ["sdpa"]})


def lossy_state() -> SweepState:
    """Returns a sweep whose second trial is the fastest, in bf16 where training is in fp32."""
    state = make_state([make_measured(10.0), make_measured(40.0), make_measured(20.0)], SPEC)
    first, second, third = state.records
    others = [plan for plan in state.space.candidates if plan != first.plan]
    lossless, lossy = (
        next(plan for plan in others if plan.precision == word) for word in ("fp32", "bf16")
    )
    return replace(
        state, records=(first, replace(second, plan=lossy), replace(third, plan=lossless))
    )


def printed(shown: RenderableType) -> str:
    console = Console(file=io.StringIO(), width=400)
    console.print(shown)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def started(state: SweepState) -> str:
    plan = state.records[1].plan
    event = TrialStarted(number=1, plan=plan, reason=IsBaseline(), deadline_seconds=60.0, at=BEGAN)
    return " ".join(lines(event, state))


def won(state: SweepState) -> str:
    assert state.best is not None
    return printed(render_text(explanation_text(explain_best(state, state.best, None), state)))


VIEWS: dict[str, Callable[[SweepState], str]] = {
    "report": lambda state: printed(render_report(state, "plimsoll ui")),
    "page": report_page,
    "description in MLflow": best_markdown,
    "log": started,
    "live": lambda state: printed(dashboard(state, now=BEGAN, width=200, height=60)),
    "explain": won,
    "explain --plan": lambda state: printed(
        render_text(explanation_text(explain_trial(state, state.records[1], None), state))
    ),
}


@pytest.mark.parametrize("view", VIEWS)
def test_every_view_labels_a_lossy_plan(view: str) -> None:
    assert "lossy: " in VIEWS[view](lossy_state())


def test_the_report_names_the_best_lossless_plan_too() -> None:
    words = VIEWS["report"](lossy_state())

    assert "lossy: it trains with bf16; train specifies adamw in fp32" in words
    assert "the best lossless plan is trial 2" in words


def test_mlflow_has_a_tag_and_a_column() -> None:
    state = lossy_state()

    assert trial_tags(state.records[1], SPEC, "demo")["lossy"] == "bf16"
    assert "lossy" not in trial_tags(state.records[0], SPEC, "demo")
    assert sweep_tags(state)["lossy"] == "bf16"
    assert may_be_lossy(state.space, SPEC)
    assert not may_be_lossy(make_space(make_spec()), make_spec())
    assert "tags.`lossy`" in view_state(lossy=True)
    assert "tags.`lossy`" not in view_state()


def test_an_exported_folder_says_so() -> None:
    lossless, lossy = (taken_of(make_plan(precision=word)) for word in ("fp32", "bf16"))

    assert "Lossy: it trains with bf16" in page(lossy)
    assert "Lossy" not in page(lossless)


def page(what: ExportSource) -> str:
    return readme(export_bundle(what), what, collect_inputs(what.spec))
