"""How the last sweep of a study ended, and what it left to find: an attribute of the study."""

from __future__ import annotations

from dataclasses import asdict

import optuna

from orchestrator.core.events import SweepEnded
from orchestrator.study.records import ended_trials

_ENDED, _TRIALS = "ended", "trials"


def keep_end(study: optuna.Study, ended: SweepEnded) -> None:
    """Writes the end down, in the place of an earlier one; one commit."""
    study.set_user_attr(_ENDED, asdict(ended) | {_TRIALS: len(ended_trials(study))})


def kept_end(study: optuna.Study) -> SweepEnded | None:
    """The end; None if none was kept, or a trial has ended since, which it knows nothing of."""
    kept = study.user_attrs.get(_ENDED)
    if kept is None or kept[_TRIALS] != len(ended_trials(study)):
        return None
    return SweepEnded(**{name: value for name, value in kept.items() if name != _TRIALS})
