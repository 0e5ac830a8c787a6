"""The storage writes what Optuna's own would, and a block of writes as a whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.storages import BaseStorage, RDBStorage
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState, create_trial

from orchestrator.study.optuna_private import StudyStorage

TRIAL = create_trial(
    state=TrialState.RUNNING,
    params={"rows": 4, "share": 0.25, "engine": "torch"},
    distributions={
        "rows": IntDistribution(1, 64, log=True),
        "share": FloatDistribution(0, 1),
        "engine": CategoricalDistribution(["torch", "deepspeed"]),
    },
    user_attrs={"plan": {"rows": 4, "nested": [1, None]}, "asked": "é"},
)


def written(storage: BaseStorage) -> list[FrozenTrial]:
    """Writes three trials of two studies, of which one ends; returns them as they are read."""
    studies = [
        storage.create_new_study([StudyDirection.MAXIMIZE], study_name=name) for name in "ab"
    ]
    first = storage.create_new_trial(studies[0], TRIAL)
    other = storage.create_new_trial(studies[1], TRIAL)
    second = storage.create_new_trial(
        studies[0], create_trial(state=TrialState.RUNNING, user_attrs={"plan": 1})
    )
    storage.set_trial_user_attr(first, "record", {"rate": 3.5})
    storage.set_trial_state_values(first, TrialState.COMPLETE, (3.5,))
    return [storage.get_trial(trial) for trial in (first, other, second)]


def contents(trial: FrozenTrial) -> dict[str, Any]:
    timeless = ("datetime_start", "datetime_complete")
    return {key: value for key, value in vars(trial).items() if key.strip("_") not in timeless}


@pytest.fixture
def storage(tmp_path: Path) -> StudyStorage:
    return StudyStorage(f"sqlite:///{tmp_path}/ours.db")


def test_trials_are_those_that_optuna_itself_would_write(
    storage: StudyStorage, tmp_path: Path
) -> None:
    stock = RDBStorage(f"sqlite:///{tmp_path}/stock.db")

    ours = written(storage)
    assert [contents(trial) for trial in ours] == [contents(trial) for trial in written(stock)]
    for trial in ours:
        assert trial.datetime_start is not None


def test_a_block_of_writes_takes_effect_as_a_whole(storage: StudyStorage, tmp_path: Path) -> None:
    study = storage.create_new_study([StudyDirection.MAXIMIZE], study_name="study")
    trial = storage.create_new_trial(study, TRIAL)
    elsewhere = RDBStorage(f"sqlite:///{tmp_path}/ours.db")

    def fail() -> None:
        with storage.transaction():
            storage.set_trial_user_attr(trial, "record", 1)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert "record" not in elsewhere.get_trial(trial).user_attrs

    with storage.transaction():
        storage.set_trial_user_attr(trial, "record", 2)
        assert "record" not in elsewhere.get_trial(trial).user_attrs
        storage.set_trial_state_values(trial, TrialState.PRUNED)
    read = elsewhere.get_trial(trial)
    assert (read.user_attrs["record"], read.state) == (2, TrialState.PRUNED)

    storage.set_study_user_attr(study, "later", 1)  # commits again by itself
    assert elsewhere.get_study_user_attrs(study) == {"later": 1}
