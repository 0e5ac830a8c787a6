"""Studies by every name that a user may give them, and the errors of wrong names."""

from pathlib import Path

import pytest

from orchestrator.api import NO_SPEC_NOTE, find_study
from orchestrator.workspace import STORAGE_VARIABLE
from search_spaces.errors import SpecError, StudyError
from tests.orchestrator.cli.studies import a_plan, a_study
from tests.outcomes import make_measured

TRIED = ((a_plan(), make_measured(20.0)),)


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_by_specification_folder_name_and_database() -> None:
    spec = a_study(TRIED)
    named = (None, str(spec), "demo", "plimsoll-runs/demo", "plimsoll-runs/demo/spec.yaml")

    for each in (*named, "plimsoll-runs/demo/study.db"):
        found = find_study(each)
        assert (found.name, found.note) == ("demo", ""), each
        assert found.spec.train.global_batch == 16

    by_url = find_study("sqlite:///plimsoll-runs/demo/study.db")
    assert (by_url.name, by_url.note) == ("demo", NO_SPEC_NOTE)
    assert by_url.spec.train.global_batch == 16
    assert by_url.spec.study.storage == "sqlite:///plimsoll-runs/demo/study.db"


def test_one_of_several_in_a_database() -> None:
    shared = {"storage": "sqlite:///shared.db"}
    a_study(TRIED, "one", study=shared)
    a_study(TRIED, "two", study=shared)

    assert find_study("shared.db#two").name == "two"
    assert find_study("sqlite:///shared.db#one").name == "one"
    with pytest.raises(StudyError, match=r"it holds one, two: .*shared\.db#NAME"):
        find_study("sqlite:///shared.db")
    with pytest.raises(StudyError, match="holds no study three; it holds one, two"):
        find_study("shared.db#three")


def test_a_name_is_looked_up_in_the_storage_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    a_study(TRIED, "theirs", study={"storage": f"sqlite:///{tmp_path}/shared.db"})
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    monkeypatch.setenv(STORAGE_VARIABLE, f"sqlite:///{tmp_path}/shared.db")

    assert find_study("theirs").name == "theirs"
    with pytest.raises(StudyError, match=f"in plimsoll-runs or {STORAGE_VARIABLE}"):
        find_study("nobodys")


def test_what_is_none_is_a_sentence() -> None:
    with pytest.raises(StudyError, match=r"^--records other is neither a specification"):
        find_study("other", option="--records")
    with pytest.raises(SpecError, match="does not exist; `plimsoll init` writes one"):
        find_study("other.yaml")
    with pytest.raises(StudyError) as caught:
        find_study("nosuch://ann:secret-word@host/db")
    assert "secret-word" not in str(caught.value)
