"""The storage writes a block of writes as a whole."""

from pathlib import Path

import pytest
from optuna.storages import RDBStorage
from optuna.study import StudyDirection
from optuna.trial import TrialState, create_trial

from orchestrator.study.optuna_private import StudyStorage

TRIAL = create_trial(state=TrialState.RUNNING)


@pytest.fixture
def storage(tmp_path: Path) -> StudyStorage:
    return StudyStorage(f"sqlite:///{tmp_path}/ours.db")


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
