"""The study: every trial of a sweep, kept by Optuna. The one package that knows Optuna."""

from orchestrator.study.store import Asked, Interrupted, Study, load_records, storage_url

__all__ = ["Asked", "Interrupted", "Study", "load_records", "storage_url"]
