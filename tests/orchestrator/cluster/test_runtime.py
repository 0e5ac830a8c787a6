"""Environment of Ray's processes: variables that are handed over, and inherited ones."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.cluster.runtime import (
    WORKER_ENVIRONMENT,
    configure_own_ray,
    configure_ray,
    is_own_ray,
    missing_variables,
)
from orchestrator.cluster.worker_group import trainer_of
from orchestrator.core.placement import Placement, Processes
from tests.workers.values import a_spec
from workers.worker import pick_device


@pytest.fixture(autouse=True)
def own_environment() -> Iterator[None]:
    """Restores the environment after each test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.environ", {"PATH": "/bin", "RAY_DEDUP_LOGS": "1"})
        yield


def test_on_a_cluster_that_is_joined_everything_is_handed_over() -> None:
    configure_own_ray()  # of the sweep before
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


def test_workers_train_on_the_device_that_the_driver_settled(tmp_path: Path) -> None:
    """torch may see a GPU that Ray was not told of, which all ranks would share."""
    spec = a_spec(cluster={"device": "auto"})
    processes = Processes(world_size=2, environment=())
    config = trainer_of(spec, processes, "cpu", str(tmp_path), {}).train_loop_config

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("torch.cuda.is_available", lambda: True)
        assert pick_device(config["spec"].cluster.device, 0).type == "cpu"
    assert config["spec"].train == spec.train


def test_ranks_on_tpus_take_one_each_on_the_nodes_that_placement_chose(tmp_path: Path) -> None:
    placement = Placement((("a" * 56, 4), ("b" * 56, 4)))
    processes = Processes(world_size=8, environment=(), placement=placement)
    trainer = trainer_of(a_spec(cluster={"device": "tpu"}), processes, "tpu", str(tmp_path), {})
    scaling = trainer.scaling_config

    assert scaling._resources_per_worker_not_none == {"CPU": 1.0, "TPU": 1.0}
    assert scaling.num_tpus_per_worker == 1
    assert [each["ray.io/node-id"][0] for each in scaling.label_selector] == [*"aaaabbbb"]
    assert trainer.backend_config.backend == "tpu_dist"
