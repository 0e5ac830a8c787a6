"""Environment of Ray's processes: variables that are handed over, and inherited ones."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from orchestrator.cluster.runtime import (
    WORKER_ENVIRONMENT,
    configure_own_ray,
    configure_ray,
    is_own_ray,
    missing_variables,
)


@pytest.fixture(autouse=True)
def own_environment() -> Iterator[None]:
    """Restores the environment after each test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.environ", {"PATH": "/bin", "RAY_DEDUP_LOGS": "1"})
        yield


def test_on_a_cluster_that_is_joined_everything_is_handed_over() -> None:
    configure_ray()

    assert not is_own_ray()
    assert missing_variables({"PATH": "/bin", "A": "1"}) == {"PATH": "/bin", "A": "1"}


def test_of_a_ray_of_our_own_processes_are_handed_what_they_would_not_have() -> None:
    configure_own_ray()

    assert is_own_ray()
    assert missing_variables(WORKER_ENVIRONMENT) == {}
    assert missing_variables({"PATH": "/bin", "A": "1"}) == {"A": "1"}
    assert missing_variables({"PATH": "/usr/bin"}) == {"PATH": "/usr/bin"}  # another value


def test_what_the_user_has_set_stays() -> None:

    configure_ray()

    assert os.environ["RAY_DEDUP_LOGS"] == "1"
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"


def test_the_next_sweep_may_join_where_the_last_one_had_its_own() -> None:
    configure_own_ray()
    configure_ray()

    assert not is_own_ray()
