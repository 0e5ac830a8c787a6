"""Ray Train's trainer of a group: its ranks load torch, and nothing else of it does.

`TorchTrainer` loads torch wherever it is pickled to, which is two processes more of each group, and
starts two actors that nothing of ours uses. All of them stand on the head node.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import GetTimeoutError
from ray.train import get_context
from ray.train._internal.utils import get_address_and_port
from ray.train.backend import Backend, BackendConfig
from ray.train.v2._internal.callbacks.datasets import DatasetsCallback
from ray.train.v2._internal.callbacks.placement_group_callback import PlacementGroupCleanerCallback
from ray.train.v2._internal.constants import ENV_VARS_TO_PROPAGATE
from ray.train.v2._internal.execution.controller import TrainController
from ray.train.v2._internal.util import TrainingFramework
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

from orchestrator.cluster.nodes import ID_LABEL
from orchestrator.cluster.runtime import is_own_ray

# Shards of Ray Data are handed out by one, and there are none; the other frees the placement group
# of a controller that died, if there is a dashboard to ask, and `ray_leftovers` does so without.
_WITHOUT = (DatasetsCallback, PlacementGroupCleanerCallback)
_LEAVE_SECONDS = 30  # for what is left of a process group


if is_own_ray():  # controllers read it, and import this to know their backend
    ENV_VARS_TO_PROPAGATE.clear()


class LeanTrainer(DataParallelTrainer):  # type: ignore[misc]
    """Trains like `TorchTrainer`. What it overrides is private to Ray Train (2.60)."""

    def _initialize_and_run_controller(self, **given: Any) -> Any:
        if not is_own_ray():
            return super()._initialize_and_run_controller(**given)
        here = {ID_LABEL: ray.get_runtime_context().get_node_id()}
        controller = ray.remote(num_cpus=0, label_selector=here)(TrainController).remote(**given)
        ray.get(controller.run.remote())
        return ray.get(controller.get_result.remote())

    def _create_default_callbacks(self) -> list[Any]:
        return [one for one in super()._create_default_callbacks() if not isinstance(one, _WITHOUT)]


@dataclass
class ProcessGroup(BackendConfig):  # type: ignore[misc]
    """Ray's `TorchConfig`, for processes without torch.

    Args:
        backend: "gloo" or "nccl".
        timeout_s: Longest wait for another rank in the default process group.
    """

    backend: str
    timeout_s: int

    @property
    def backend_cls(self) -> type[Backend]:
        """Who sets it up."""
        return _Rendezvous

    @property
    def train_func_context(self) -> Callable[[], AbstractContextManager[None]]:
        """What a rank is in while it runs."""
        return _on_its_device

    @property
    def framework(self) -> TrainingFramework:
        """Told in Ray's dashboard."""
        return TrainingFramework.TORCH

    def to_dict(self) -> dict[str, Any]:
        """Told there too."""
        return {"backend": self.backend, "timeout_s": self.timeout_s}


class _Rendezvous(Backend):  # type: ignore[misc]
    """Does what Ray's own does for `TorchConfig`, all of it in the ranks."""

    share_cuda_visible_devices = True

    def on_start(self, worker_group: Any, backend_config: ProcessGroup) -> None:
        address, port = worker_group.execute_single(0, get_address_and_port)
        worker_group.execute(_join, address, port, backend_config.backend, backend_config.timeout_s)

    def on_shutdown(self, worker_group: Any, backend_config: ProcessGroup) -> None:
        with contextlib.suppress(GetTimeoutError):  # they are ended
            ray.get(worker_group.execute_async(_leave), timeout=_LEAVE_SECONDS)


def _join(address: str, port: int, backend: str, timeout_s: int) -> None:
    from ray.train.torch.config import _set_torch_distributed_env_vars, _setup_torch_process_group

    os.environ.update(MASTER_ADDR=address, MASTER_PORT=str(port))
    _set_torch_distributed_env_vars()
    here = get_context()
    rank, world_size = here.get_world_rank(), here.get_world_size()
    _setup_torch_process_group(backend, rank, world_size, "env://", timeout_s)


def _leave() -> None:
    from ray.train.torch.config import _shutdown_torch

    _shutdown_torch(destroy_process_group=get_context().get_world_size() > 1)


@contextmanager
def _on_its_device() -> Iterator[None]:
    from ray.train.torch.config import TorchConfigContextManager

    with TorchConfigContextManager():
        yield
