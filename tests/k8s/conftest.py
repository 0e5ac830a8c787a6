"""Fixtures of the tests of running services."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.k8s.rendering import rendered
from tests.k8s.services import Services, postgres, tracking


@pytest.fixture(scope="session")
def database() -> Iterator[Path]:
    """The overlay's PostgreSQL: the folder of its sockets, whose names have to be short."""
    with tempfile.TemporaryDirectory(prefix="pg", dir="/tmp") as folder:
        Path(folder).chmod(0o755)  # for root's tests the server runs as another user
        with postgres(rendered("local"), Path(folder)) as sockets:
            yield sockets


@pytest.fixture(scope="session")
def services(database: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    """The overlay's MLflow on that database."""
    with tracking(rendered("local"), database, tmp_path_factory.mktemp("mlflow")) as found:
        yield found
