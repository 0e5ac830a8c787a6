"""MLflow, derived from the study: the only package that imports mlflow, and late.

Importing mlflow takes seconds, so that only `writer` does, in the listener's thread.
"""

from __future__ import annotations

from orchestrator.mlflow_tracking.listener import MlflowListener
from orchestrator.mlflow_tracking.store import (
    answer_address,
    check_tracking,
    store_uri,
    ui_address,
    ui_command,
    ui_environment,
)
from orchestrator.mlflow_tracking.sync import add_what_is_missing

__all__ = [
    "MlflowListener",
    "add_what_is_missing",
    "answer_address",
    "check_tracking",
    "store_uri",
    "ui_address",
    "ui_command",
    "ui_environment",
]
