"""Results of the Python API: a sweep, and a report of what was checked or planned."""

import io
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from orchestrator import api
from orchestrator.api import TunedPlan, find_study, load_best
from orchestrator.core.state import SweepState
from orchestrator.explain.context import forecasts_or_reason
from orchestrator.export.formats import export_study
from orchestrator.report.document import report_document
from orchestrator.report.explain_text import explanation_text
from orchestrator.report.sweep_document import report_page, sweep_document
from orchestrator.report.sweep_text import best_sentence
from orchestrator.report.terminal import SafeConsole, render_text
from search_spaces.errors import StudyError, UserError
from search_spaces.plan import knob_problem

_FRAME = '<iframe srcdoc="{}" style="width: 100%; height: 40em; border: 0"></iframe>'


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Report:
    """Report of `plan` or `check`: values as `--json` prints them, text, and a notebook's page."""

    headline: str
    values: Mapping[str, Any]
    text: str
    html: str | None = None

    def __repr__(self) -> str:
        return f"<Report: {self.headline}>"

    def _repr_html_(self) -> str | None:
        return self.html and _FRAME.format(escape(self.html))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Sweep:
    """A study: its trials, the best plan, and what is made of them; a notebook shows its page."""

    where: str  # what commands find it by
    state: SweepState  # internal: its fields may change with any release

    def __repr__(self) -> str:
        return f"<Sweep {self.state.study}: {best_sentence(self.state)}>"

    def _repr_html_(self) -> str:
        page = report_page(self.state, *forecasts_or_reason(self.state))
        return _FRAME.format(escape(page))

    @property
    def records(self) -> list[dict[str, Any]]:
        """The trials as plain values, in order; docs/cli.md has the fields."""
        return list(report_document(self.state)["trials"])

    @property
    def best(self) -> TunedPlan:
        """The best plan; raises StudyError if none is feasible."""
        return load_best(self.where)

    def to_pandas(self) -> Any:
        """Returns the trials as a pandas.DataFrame, a column for each knob and figure."""
        from pandas import json_normalize  # not one of Plimsoll's packages

        return json_normalize(self.records)

    def report(self) -> str:
        """Returns the report as text."""
        return printed(render_text(sweep_document(self.state)))

    def explain(self, trial: int | None = None, **knobs: Any) -> str:
        """Returns why the best plan won, how `trial` ended, or why a plan was not tried.

        `knobs` are values of such a plan; its others are those of the best plan. Raises UserError
        if there is no such trial or knob, or no plan is feasible.
        """
        for name, value in knobs.items():
            if problem := knob_problem(name, value):
                raise UserError(problem)
        explanation = api.explain(self.state, trial, knobs)
        if explanation is None:
            raise StudyError(f"{best_sentence(self.state)}; explain(N) tells how trial N ended")
        return printed(render_text(explanation_text(explanation, self.state)))

    def export(self, format_name: str | None = None, folder: str | Path | None = None) -> Path:
        """Writes the best plan for another trainer, as `plimsoll export`; returns the folder.

        Raises UserError if the format has no word for the plan, or the folder cannot be written.
        """
        study, target = find_study(self.where), None if folder is None else Path(folder)
        return export_study(study, format_name=format_name, trial=None, folder=target)[2]


def printed(content: Any) -> str:
    """Returns what a console of 110 columns without colours prints."""
    file = io.StringIO()
    SafeConsole(file=file, color_system=None, force_terminal=False, width=110).print(content)
    return file.getvalue()
