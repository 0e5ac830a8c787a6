"""MLflow, derived from the study: the only package that imports mlflow, and late.

Importing mlflow takes seconds, so that only `writer` does, in the listener's thread.
"""

from __future__ import annotations

from orchestrator.mlflow_tracking.listener import MlflowListener
from orchestrator.mlflow_tracking.store import (
    check_tracking,
    store_uri,
    ui_address,
    ui_command,
    ui_environment,
)

__all__ = [
    "MlflowListener",
    "check_tracking",
    "store_uri",
    "ui_address",
    "ui_command",
    "ui_environment",
]
