"""Artifacts of a sweep's run in MLflow, as texts by file name, and its description."""

from __future__ import annotations

import json
from dataclasses import asdict

from orchestrator.core.objective import outcome_counts
from orchestrator.core.state import SweepState
from orchestrator.host import package_versions, system_facts
from orchestrator.report.labels import counts_words
from orchestrator.report.page_data import ReportData
from orchestrator.report.reasons import stop_words
from orchestrator.report.sweep_page import report_page
from orchestrator.report.sweep_text import (
    best_sentence,
    equals_sentence,
    evidence_sentences,
    forecast_sentence,
    lossy_sentence,
    speedup_sentence,
)
from search_spaces.spec.load import spec_to_yaml
from search_spaces.spec.schema import SweepSpec
from search_spaces.trial import Fingerprint

_WITHOUT = (
    "This page was written when the sweep ended and has measurements only; `plimsoll report"
    " --html` adds forecasts of untried plans."
)


def start_files(spec: SweepSpec) -> dict[str, str]:
    """Returns the specification without passwords, facts of this machine, and its packages."""
    packages = "\n".join(f"{name}=={version}" for name, version in package_versions(every=True))
    return {
        "spec.yaml": spec_to_yaml(spec),
        "system.json": _json(system_facts()),
        "packages.txt": packages + "\n",
    }


def worker_files(fingerprint: Fingerprint | None) -> dict[str, str]:
    """Returns the hardware and software of the trials."""
    if fingerprint is None:
        return {}
    pairs = {"versions": fingerprint.versions, "environment": fingerprint.environment}
    content = asdict(fingerprint) | {name: dict(values) for name, values in pairs.items()}
    return {"workers.json": _json(content)}


def end_files(state: SweepState) -> dict[str, str]:
    """Returns the report as a page, and the best plan, if any, for `plimsoll trial --plan`.

    The page has no forecasts of untried plans, because they need a trace of the model.
    """
    best = state.best
    plan = {} if best is None else {"best_plan.json": _json(best.plan.as_dict())}
    return plan | {"report.html": report_page(ReportData(state=state, context=None, note=_WITHOUT))}


def answer_markdown(state: SweepState) -> str:
    """Returns the description of the sweep's run; MLflow shows its first three lines."""
    sentences = [best_sentence(state)]
    if state.best is not None:
        sentences += [speedup_sentence(state), lossy_sentence(state)]
        sentences += [one for one in evidence_sentences(state) if one not in sentences]
        sentences.append(equals_sentence(state))
    sentences.append(forecast_sentence(state))
    outcomes = counts_words(outcome_counts(state.records)) or "none"
    sentences.append(f"trials: {outcomes}")
    if state.ended is not None:
        sentences.append(f"ended: {stop_words(state.ended.reason)}")
    return "\n".join(f"- {sentence}" for sentence in sentences if sentence)


def _json(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"
