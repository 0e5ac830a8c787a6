"""What the tests of the study share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from search_spaces.spec.schema import SweepSpec
from tests.orchestrator.study.values import study_spec


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Optuna's GP computes with torch: threads that fight for two cores take longer than one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=["sqlite", "postgresql"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty storage, of each kind that studies are kept in."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/all.db"
    url: str = request.getfixturevalue("database")
    return url


@pytest.fixture
def spec(storage: str, tmp_path: Path) -> SweepSpec:
    """A sweep whose study is kept there."""
    return study_spec(tmp_path / "runs", "random", study={"storage": storage})
