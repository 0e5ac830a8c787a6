"""The sweep controller: search, trials, records and reports, on Ray, Optuna and MLflow."""

from orchestrator.api import Best, load_best

__all__ = ["Best", "load_best"]
