"""Ray Train's trainer of a worker group: only its ranks load torch.

Ray's `TorchTrainer` is pickled to two more processes of each group, which load torch as well, and
starts two actors that a group does not need. All of them run on the head node.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from typing import Any

import ray
from ray.train import get_context
from ray.train.backend import Backend, BackendConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

from orchestrator.cluster import ray_private
from orchestrator.cluster.nodes import ID_LABEL
from orchestrator.cluster.runtime import is_own_ray

_listeners: list[socket.socket] = []  # in the first rank, from `_listen` until `_join`


if is_own_ray():  # controllers read it, and import this module to unpickle their backend
    ray_private.train_environment().clear()


class LeanTrainer(DataParallelTrainer):  # type: ignore[misc]
    """Trains like `TorchTrainer`. It overrides two private methods of Ray Train (2.60)."""

    def _initialize_and_run_controller(self, **arguments: Any) -> Any:
        if not is_own_ray():
            return super()._initialize_and_run_controller(**arguments)
        this_node = {ID_LABEL: ray.get_runtime_context().get_node_id()}
        controller_class = ray.remote(num_cpus=0, label_selector=this_node)(
            ray_private.controller_class()
        )
        controller = controller_class.remote(**arguments)
        ray.get(controller.run.remote())
        return ray.get(controller.get_result.remote())

    def _create_default_callbacks(self) -> list[Any]:
        # a group has no data of Ray Data; `cleanup.remove_abandoned_placement_groups` frees
        # placement groups
        needless = ray_private.callbacks_with_actors()
        callbacks = super()._create_default_callbacks()
        return [callback for callback in callbacks if not isinstance(callback, needless)]


@dataclass
class ProcessGroup(BackendConfig):  # type: ignore[misc]
    """Backend like Ray's `TorchConfig`, for processes that do not load torch.

    Args:
        backend: "gloo" or "nccl".
        timeout_s: Longest wait for another rank in the default process group.
    """

    backend: str
    timeout_s: int

    @property
    def backend_cls(self) -> type[Backend]:
        """The class that sets up the process group."""
        return _Rendezvous


class _Rendezvous(Backend):  # type: ignore[misc]
    """Opens the process group as Ray's backend for `TorchConfig` does, all of it in the ranks.

    It closes as Ray ends the ranks; `Worker` makes the rank's GPU the current device.
    """

    share_cuda_visible_devices = True

    def on_start(self, worker_group: Any, backend_config: ProcessGroup) -> None:
        address, port = worker_group.execute_single(0, _listen)
        worker_group.execute(_join, address, port, backend_config.backend, backend_config.timeout_s)


def _listen() -> tuple[str, int]:
    """Opens the socket of the first rank's store; returns its address and port."""
    from workers.process_groups import listen_at

    listener = listen_at(ray.util.get_node_ip_address())
    _listeners.append(listener)
    address, port = listener.getsockname()[:2]
    return address, port


def _join(address: str, port: int, backend: str, timeout_s: int) -> None:
    from workers.process_groups import Rendezvous, join_group

    os.environ.update(MASTER_ADDR=address, MASTER_PORT=str(port))
    ray_private.set_rank_variables()
    context = get_context()
    at = Rendezvous(
        address=address,
        port=port,
        world_size=context.get_world_size(),
        backend=backend,
        seconds=timeout_s,
    )
    join_group(at, context.get_world_rank(), _listeners.pop() if _listeners else None)
