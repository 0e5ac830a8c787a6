"""What do we try next, and what did we learn? Ray, Optuna and MLflow, each behind one module."""

from orchestrator.api import Best, load_best

__all__ = ["Best", "load_best"]
