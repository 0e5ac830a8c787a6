"""Artifacts of a sweep's run in MLflow, as texts by file name, and its description."""

import json
from dataclasses import asdict

from orchestrator.core.state import SweepState
from orchestrator.host import package_versions, system_facts
from orchestrator.report.sweep_document import report_page, sweep_document
from search_spaces.specification.load import spec_to_yaml
from search_spaces.specification.schema import SweepSpec
from search_spaces.trial import Fingerprint

_WITHOUT = "they need a trace of the model; `plimsoll report --html` adds them"


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
    return plan | {"report.html": report_page(state, note=_WITHOUT)}


def best_markdown(state: SweepState) -> str:
    """Returns the description of the sweep's run; MLflow shows its first three lines."""
    document = sweep_document(state)
    return "\n".join(f"- {sentence}" for sentence in document.sentences)


def _json(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"
