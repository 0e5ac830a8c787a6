"""The study: every trial of a sweep, kept by Optuna. The one package that knows Optuna."""

from search_spaces.extras import require

require("optuna", "sqlalchemy")

from orchestrator.study.dashboard import serve_dashboard
from orchestrator.study.earlier import earlier_studies
from orchestrator.study.locks import sole_driver
from orchestrator.study.opening import check_study
from orchestrator.study.plimsoll_sampler import PlimsollSampler
from orchestrator.study.reading import (
    held_studies,
    load_end,
    load_proofs,
    load_provenances,
    load_records,
)
from orchestrator.study.storage import storage_url
from orchestrator.study.store import Asked, Interrupted, Study, StudyLost

__all__ = [
    "Asked",
    "Interrupted",
    "PlimsollSampler",
    "Study",
    "StudyLost",
    "check_study",
    "earlier_studies",
    "held_studies",
    "load_end",
    "load_proofs",
    "load_provenances",
    "load_records",
    "serve_dashboard",
    "sole_driver",
    "storage_url",
]
