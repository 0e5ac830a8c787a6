"""The study: every trial of a sweep, kept by Optuna. The one package that knows Optuna."""

from orchestrator.study.earlier import earlier_studies
from orchestrator.study.reading import load_end, load_proofs, load_records
from orchestrator.study.storage import storage_url
from orchestrator.study.store import Asked, Interrupted, Study, check_study

__all__ = [
    "Asked",
    "Interrupted",
    "Study",
    "check_study",
    "earlier_studies",
    "load_end",
    "load_proofs",
    "load_records",
    "storage_url",
]
