"""Fixtures for tests of the study."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from search_spaces.specification.schema import SweepSpec
from tests.orchestrator.study.values import study_spec


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Limits torch to one thread: Optuna's GP is slower with threads that compete for two cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.thorough)])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """URL of an empty storage, of each supported kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/all.db"
    url: str = request.getfixturevalue("database")
    return url


@pytest.fixture
def spec(storage: str, tmp_path: Path) -> SweepSpec:
    """A sweep with its study in that storage."""
    return study_spec(tmp_path / "runs", "random", study={"storage": storage})
