"""MLflow's environment variables: silence, no telemetry, and requests that end soon."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator

# Read by MLflow when it is imported. Without them it sends telemetry.
_SETTINGS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_LOGGING_LEVEL": "ERROR",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",  # of each run, where a server has a page
}
# Read at each request. Without them MLflow asks a server that is gone for minutes.
_REQUESTS = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_HTTP_REQUEST_TIMEOUT": "20"}
_PROBE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "5"}
_NOISY_LOGGERS = {
    "mlflow": logging.ERROR,
    "mlflow.store.db.utils": logging.CRITICAL,  # a database that is away is told as our own note
    "alembic": logging.ERROR,
}


def settle_mlflow() -> None:
    """Sets MLflow's environment before it is imported; what the user has set stays."""
    for name, value in (_SETTINGS | _REQUESTS).items():
        os.environ.setdefault(name, value)
    for name, level in _NOISY_LOGGERS.items():
        logging.getLogger(name).setLevel(level)


@contextlib.contextmanager
def brief_requests() -> Iterator[None]:
    """Bounds a request to some seconds while somebody waits; what the user has set stays."""
    settle_mlflow()
    ours = [name for name, value in _REQUESTS.items() if os.environ[name] == value]
    os.environ.update({name: _PROBE[name] for name in ours})
    try:
        yield
    finally:
        os.environ.update({name: _REQUESTS[name] for name in ours})
