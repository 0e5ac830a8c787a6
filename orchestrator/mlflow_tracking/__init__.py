"""MLflow, derived from the study: the only package that imports mlflow, and late.

Importing mlflow takes seconds, so that `client` and `writer` are imported where they are used: in
the listener's thread, before a sweep on a tracking server, and by `plimsoll ui`.
"""

from __future__ import annotations

from orchestrator.mlflow_tracking.listener import MlflowListener
from orchestrator.mlflow_tracking.pages import Pages, sweep_pages, ui_command, ui_environment
from orchestrator.mlflow_tracking.provenance_fields import job_context
from orchestrator.mlflow_tracking.reachability import check_tracking
from orchestrator.mlflow_tracking.store import store_uri
from orchestrator.mlflow_tracking.sync import add_what_is_missing

__all__ = [
    "MlflowListener",
    "Pages",
    "add_what_is_missing",
    "check_tracking",
    "job_context",
    "store_uri",
    "sweep_pages",
    "ui_command",
    "ui_environment",
]
