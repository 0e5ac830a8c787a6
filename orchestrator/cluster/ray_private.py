"""Private parts of Ray that Plimsoll needs: no other module imports them.

Checked with Ray 2.60.0; `pyproject.toml` admits no other minor version. After an upgrade, compare
each function with Ray's source. Each part is needed because the public API falls short:

- `ray._private.state`, `ray.core.generated`: the public state API needs the dashboard, which local
  sweeps and many clusters run without.
- `ray._private.worker`: what it does at the end of a process has no time limit.
- `ray._private.runtime_env.packaging`: its logger has no public setting, and nothing public says
  what of a folder it packs.
- `ray.data._internal.cluster_autoscaler`: the public `request_resources` overwrites the requests
  of Ray Train.
- `ray.tune.execution.class_cache`, `ray.train.v2._internal.constants`: Tune hands the driver's AWS
  keys to its actors, and Ray logs them. A process that is handed any variable starts 1.5 s later.
- `ray.train.v2._internal.execution`: Ray Train always hands variables to its controller.
- `ray.train.v2._internal.callbacks`: two default callbacks start actors that no group needs.
- `ray.train.v2._internal.execution.scaling_policy`: the default policy asks an autoscaler, by an
  actor that it starts and waits for.
- `ray._private.ray_constants`: no public setting lets Ray on Linux listen on 127.0.0.1.
- `ray.job_config`: nor one that keeps the current directory off the path of workers.

Besides, `orchestrator.cluster.trainer.LeanTrainer` overrides two private methods of Ray Train's
`DataParallelTrainer`, and the client in `orchestrator.cluster.jobs` one of Ray's job client, whose
requests have no time limit. Nothing here imports Ray before it is called: modules that must not
load Ray import this one.
"""

import contextlib
import logging
import os
import sys
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

PACKAGING_LOGGER = "ray._private.runtime_env.packaging"  # logs each upload of a folder


def packed_sizes(folder: Path, excludes: Sequence[str]) -> dict[Path, int]:
    """Returns the bytes of each file that Ray packs as a working directory, by relative path.

    Ray leaves out `excludes` (in .gitignore's syntax), its own defaults, and what `.gitignore` and
    `.rayignore` of each folder name. The package is not compressed.

    Raises:
        OSError: If a file or folder cannot be read.
    """
    from ray._private import ray_constants
    from ray._private.runtime_env import packaging

    sizes: dict[Path, int] = {}

    def add(path: Path) -> None:
        if path.is_file():
            sizes[path.relative_to(root)] = path.stat().st_size

    root = folder.absolute()
    patterns = [*ray_constants.get_runtime_env_default_excludes(), *excludes]
    ignored = os.environ.get(ray_constants.RAY_RUNTIME_ENV_IGNORE_GITIGNORE) != "1"
    excluded = [packaging._get_excludes(root, patterns)]
    packaging._dir_travel(root, excluded, add, ignored, logging.getLogger(__name__))
    return sizes


def actors_of_job() -> list[Any]:
    """Returns an `ActorTableData` of each actor of this job, dead ones included."""
    import ray
    from ray._private.state import state
    from ray.core.generated.gcs_pb2 import ActorTableData

    job = ray.JobID.from_hex(ray.get_runtime_context().get_job_id())
    rows = state._connect_and_get_accessor().get_actor_table(job, None)
    return [ActorTableData.FromString(row) for row in rows]


def forget_shutdown() -> None:
    """Keeps Ray from shutting down once more when this process ends."""
    import atexit

    from ray._private import worker

    atexit.unregister(worker.shutdown)


def is_alive(actor: Any) -> bool:
    """Returns True unless the actor of this `ActorTableData` is dead."""
    from ray.core.generated.gcs_pb2 import ActorTableData

    return bool(actor.state != ActorTableData.DEAD)


def placement_groups_of(creators: Collection[bytes]) -> list[bytes]:
    """Returns the ids of the placement groups that these actors created and that still exist.

    Args:
        creators: Ids of actors.
    """
    from ray._private.state import state
    from ray.core.generated.gcs_pb2 import PlacementGroupTableData

    rows = state._connect_and_get_accessor().get_placement_group_table()
    groups = map(PlacementGroupTableData.FromString, rows)
    return [
        group.placement_group_id
        for group in groups
        if group.creator_actor_id in creators and group.state != PlacementGroupTableData.REMOVED
    ]


def autoscaling_coordinator() -> Any:
    """Returns the actor that adds up the requests of all libraries for the autoscaler."""
    from ray.data._internal.cluster_autoscaler import default_autoscaling_coordinator as module

    return module.get_or_create_autoscaling_coordinator()


def limit_tune_environment(*, inherited: bool) -> None:
    """Reduces what Ray Tune hands to its actors: to nothing, if they have inherited it.

    The driver's AWS keys never go: they would be in a record that Ray logs.
    """
    from ray.tune.execution import class_cache

    names = class_cache.ENV_VARS_TO_PROPAGATE
    if inherited:
        names.clear()
        class_cache.DEFAULT_ENV_VARS.clear()
    names.difference_update([name for name in names if name.startswith("AWS_")])


def train_environment() -> set[str]:
    """Returns the names of the variables that Ray Train hands on; changes to it take effect."""
    from ray.train.v2._internal.constants import ENV_VARS_TO_PROPAGATE

    return ENV_VARS_TO_PROPAGATE


def controller_class() -> Any:
    """Returns the class of Ray Train's controller."""
    from ray.train.v2._internal.execution.controller import TrainController

    return TrainController


def fixed_scaling_policy() -> type:
    """Returns the class of Ray Train's policy for a fixed number of workers."""
    from ray.train.v2._internal.execution.scaling_policy import FixedScalingPolicy

    return FixedScalingPolicy


def callbacks_with_actors() -> tuple[type, ...]:
    """Returns the classes of Ray Train's default callbacks that start an actor each.

    `DatasetsCallback` hands out shards of Ray Data. `PlacementGroupCleanerCallback` frees the
    placement group of a dead controller, if there is a dashboard to ask.
    """
    from ray.train.v2._internal.callbacks.datasets import DatasetsCallback
    from ray.train.v2._internal.callbacks.placement_group_callback import (
        PlacementGroupCleanerCallback,
    )

    return DatasetsCallback, PlacementGroupCleanerCallback


@contextlib.contextmanager
def on_loopback() -> Iterator[None]:
    """Lets Ray that starts in the context listen on 127.0.0.1 alone.

    It does so by itself on Windows and macOS; elsewhere only this variable and the constant that
    was read from it say so.
    """
    from ray._private import ray_constants

    name = ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR
    variable, constant = os.environ.get(name), ray_constants.ENABLE_RAY_CLUSTER
    os.environ[name], ray_constants.ENABLE_RAY_CLUSTER = "0", False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = constant
        if variable is None:
            del os.environ[name]
        else:
            os.environ[name] = variable


@contextlib.contextmanager
def named_code_alone() -> Iterator[Any]:
    """Yields settings of a job whose workers look for modules only beside the driver's script."""
    from ray.job_config import JobConfig

    script = str(Path(sys.argv[0]).resolve().parent)
    name = "_runtime_env_has_working_dir"  # without one, Ray adds the current directory
    original = getattr(JobConfig, name)
    is_found = script in sys.path and "RAY_JOB_CONFIG_JSON_ENV_VAR" not in os.environ
    setattr(JobConfig, name, lambda _: True)
    try:
        yield JobConfig(_py_driver_sys_path=[script] if is_found else [])
    finally:
        setattr(JobConfig, name, original)
