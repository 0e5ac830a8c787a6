"""Ray Train's trainer of a worker group: only its ranks load torch.

Ray's `TorchTrainer` is pickled to two more processes of each group, which load torch as well, and
starts two actors that a group does not need. All of them run on the head node.
"""

import gc
import inspect
import os
import socket
from dataclasses import dataclass
from typing import Any

import ray
import ray.train
from ray.train.backend import Backend, BackendConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

from orchestrator.cluster import ray_private
from orchestrator.cluster.nodes import ID_LABEL
from orchestrator.cluster.runtime import is_own_ray
from search_spaces.hardware.device import BACKENDS

# unwrapped: the check of its caller loads Ray Tune
this_rank = inspect.unwrap(ray.train.get_context)

_COLLECTIVE_SECONDS = 1800  # of the default process group, in which no rank ever waits
_TPU_PORT = 8070  # of a node's first rank, as in torch_tpu/_internal/distributed/distributed.py
_ACCELERATE_DEVICES = {"gloo": "cpu", "nccl": "cuda:{}", "tpu_dist": "tpu"}
_listeners: list[socket.socket] = []  # in the first rank, from `_listen` until `_join`


if is_own_ray():  # controllers read it, and import this module to unpickle their backend
    ray_private.train_environment().clear()


class _Unrequested(ray_private.fixed_scaling_policy()):  # type: ignore[misc]
    """Starts workers without asking an autoscaler, as that starts an actor and waits for it."""

    def after_controller_start(self, train_run_context: Any) -> None:
        """Requests nothing."""

    def _maybe_send_resource_request(self) -> None:
        """Requests nothing."""


class LeanTrainer(DataParallelTrainer):  # type: ignore[misc]
    """Trains like `TorchTrainer`. It overrides two private methods of Ray Train (2.60)."""

    def _initialize_and_run_controller(self, **arguments: Any) -> Any:
        if not is_own_ray():
            return super()._initialize_and_run_controller(**arguments)
        arguments["scaling_policy"] = _Unrequested(self.scaling_config)
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


class PlacedRanks(ray.train.ScalingConfig):  # type: ignore[misc]
    """Ranks on nodes that placement chose. It overrides a private method of Ray Train (2.60)."""

    def _validate_tpu_config(self) -> None:
        """Accepts TPUs without a topology, by which Ray would choose a slice of nodes itself."""


@dataclass
class ProcessGroup(BackendConfig):  # type: ignore[misc]
    """Backend like Ray's `TorchConfig`, for processes that do not load torch.

    Args:
        backend: One of `BACKENDS`.
    """

    backend: str

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
        backend, of_slice = backend_config.backend, ""
        if backend == BACKENDS["tpu"]:
            of_slice = ",".join(worker_group.execute(_address_in_slice))
        worker_group.execute(_join, address, port, backend, of_slice)


def _listen() -> tuple[str, int]:
    """Opens the socket of the first rank's store; returns its address and port.

    Loads no torch: until it returns, the other ranks wait.
    """
    node = ray.util.get_node_ip_address()
    family = socket.AF_INET6 if ":" in node else socket.AF_INET
    listener = socket.create_server((node, 0), family=family)
    _listeners.append(listener)
    address, port = listener.getsockname()[:2]
    return address, port


def _address_in_slice() -> str:
    """Returns where a rank's TPU meets those of the others; torch_tpu takes all, rank by rank."""
    return f"{ray.util.get_node_ip_address()}:{_TPU_PORT + this_rank().get_local_rank()}"


def _join(address: str, port: int, backend: str, of_slice: str) -> None:
    gc.disable()  # until trials: what is imported stays, and collections take a sixth of the time
    context = this_rank()
    local_rank = str(context.get_local_rank())
    os.environ.update(  # for libraries, as Ray's `TorchConfig` does, whose module loads Ray Tune
        MASTER_ADDR=address,
        MASTER_PORT=str(port),
        RANK=str(context.get_world_rank()),
        WORLD_SIZE=str(context.get_world_size()),
        LOCAL_RANK=local_rank,
        LOCAL_WORLD_SIZE=str(context.get_local_world_size()),
        NODE_RANK=str(context.get_node_rank()),
        ACCELERATE_TORCH_DEVICE=_ACCELERATE_DEVICES[backend].format(local_rank),
    )
    if of_slice:
        os.environ["TORCH_TPU_SLICEBUILDER_ADDRESSES"] = of_slice
    # torch may read the variables
    from workers.plain_torch.data_parallel import meet_tpus
    from workers.process_groups import Rendezvous, join_group

    if of_slice:
        meet_tpus()
    at = Rendezvous(
        address=address,
        port=port,
        world_size=context.get_world_size(),
        backend=backend,
        seconds=_COLLECTIVE_SECONDS,
    )
    join_group(at, context.get_world_rank(), _listeners.pop() if _listeners else None)
