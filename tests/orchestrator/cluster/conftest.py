"""One Ray head for all sweeps that do not test the head: it takes ten seconds to start."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rigs.ports import free_port
from tests.rigs.ray_head import ray_head

ROOT = Path(__file__).parents[3]
# An agent forgets a gauge after two of these, which is less than workers take to start
REPORT_MS = 1500


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The home directory of the head's processes."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="session")
def metrics_port() -> int:
    """Port where the head serves metrics."""
    return free_port()


@pytest.fixture(scope="session")
def cluster(home: Path, metrics_port: int) -> Iterator[dict[str, str]]:
    """Starts a head that accepts jobs with a token; returns the environment to reach it."""
    often = {
        "RAY_metrics_report_interval_ms": str(REPORT_MS),
        "PYTHONPATH": str(ROOT),  # this checkout, wherever the command is installed from
    }
    with ray_head(home, token=True, metrics_port=metrics_port, **often) as environ:
        yield environ
