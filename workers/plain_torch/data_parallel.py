"""Data parallelism: DDP, and sharding by FSDP2."""

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.nn.parallel import DistributedDataParallel

Forward = TypeVar("Forward", bound=Callable[..., object])


def meet_tpus() -> torch.device:
    """Sets the variables that ranks on TPUs must agree on, as far as no launcher has.

    Returns:
        The rank's device: torch_tpu gives each process one, by its LOCAL_RANK.

    Source:
        torch_tpu 0.2.0, _internal/distributed/distributed.py: `set_tpu_launch_env`, whose ports
        would differ between ranks of a host that call it themselves.
    """
    here = os.environ.get("LOCAL_WORLD_SIZE", "1")
    if os.environ.get("WORLD_SIZE", "1") == here:
        ports = range(8070, 8070 + int(here))
        addresses = ",".join(f"localhost:{port}" for port in ports)
        os.environ.setdefault("TORCH_TPU_SLICEBUILDER_ADDRESSES", addresses)
    elif "TPU_TOPOLOGY" in os.environ:  # of the slice, as GKE sets it
        os.environ.setdefault("TORCH_TPU_TOPOLOGY", os.environ["TPU_TOPOLOGY"].replace("x", ","))
    torch.get_device_module("tpu").distributed.set_tpu_launch_env(nproc_per_node=int(here))
    return torch.device("tpu", torch.accelerator.current_device_index())


def shard(
    module: nn.Module,
    blocks: Sequence[nn.Module],
    mesh: DeviceMesh,
    *,
    compute: str,
    reshard_after_forward: bool | int,
    offload: bool,
    pin_memory: bool,
    prefetch_blocks: int = 0,
    reduce: str = "fp32",
    experts: Sequence[tuple[nn.Module, DeviceMesh]] = (),
) -> None:
    """Shards each block, then the remaining weights, over the data ranks, in place.

    Over a mesh of two dimensions it splits over the second one and averages gradients over the
    first one (hybrid shard).

    Args:
        module: The model.
        blocks: Its repeated blocks.
        mesh: The data ranks.
        compute: Precision of forward and backward: fp32, bf16 or fp16. Weights keep their type.
        reshard_after_forward: Free a block's weights after forward and gather them again; a number
            of ranks keeps them, split over that many neighbours, until backward.
        offload: Keep weights, gradients and optimizer states in host memory.
        pin_memory: Page-lock that memory, if the ranks have devices.
        prefetch_blocks: Blocks whose weights are gathered ahead: see `prefetch`; 0: by torch.
        reduce: Precision in which gradients are added up over the ranks.
        experts: Parts of blocks of which each data rank has some experts, and the ranks that have
            the same ones.
    """
    halves = {"bf16": torch.bfloat16, "fp16": torch.float16}
    precision = MixedPrecisionPolicy()
    if compute in halves:
        reduced = halves.get(reduce, torch.float32)
        precision = MixedPrecisionPolicy(param_dtype=halves[compute], reduce_dtype=reduced)
    policy = OffloadPolicy()
    if offload:
        policy = CPUOffloadPolicy(pin_memory=pin_memory and mesh.device_type != "cpu")
    module.register_forward_hook(_with_tensors)
    shard_part = partial(
        fully_shard,
        mp_policy=precision,
        offload_policy=policy,
        reshard_after_forward=reshard_after_forward,
    )
    for part, copies in experts:
        sharded = shard_part(part, mesh=copies)
        # tokens of all data ranks reach an expert, not of the ranks with a copy of it alone
        sharded.set_gradient_divide_factor(float(mesh.size()))
        if copies.size() > 1:
            sharded.set_force_sum_reduction_for_comms(True)
    *sharded_blocks, root = [shard_part(part, mesh=mesh) for part in (*blocks, module)]
    if prefetch_blocks:
        prefetch(root, sharded_blocks, prefetch_blocks)


def _with_tensors(_: nn.Module, __: object, output: object) -> object:
    """Returns the loss of an object, in which FSDP2 looks for no tensors; other outputs as is."""
    loss = getattr(output, "loss", None)
    return output if loss is None or isinstance(output, Mapping | tuple) else loss


def prefetch(root: FSDPModule, blocks: Sequence[FSDPModule], ahead: int) -> None:
    """Has FSDP2 gather the weights of the next `ahead` blocks before a block computes.

    The next blocks are those after it in forward, before it in backward. The first ones are
    gathered with the weights of the model that are in no block.
    """
    for index, block in enumerate(blocks):
        block.set_modules_to_forward_prefetch([*blocks[index + 1 : index + 1 + ahead]])
        block.set_modules_to_backward_prefetch([*blocks[max(index - ahead, 0) : index]][::-1])
    root.set_modules_to_forward_prefetch([*blocks[:ahead]])
    root.set_modules_to_backward_prefetch([*blocks[-ahead:]][::-1])


def replicate(
    module: nn.Module,
    device: torch.device,
    group: dist.ProcessGroup | None,
    *,
    bucket_mib: int,
    gradient_as_bucket_view: bool,
    find_unused_weights: bool,
    static_graph: bool,
    compiled: bool,
) -> DistributedDataParallel:
    """Wraps a module that is on `device` in DDP over the ranks of `group` (None: all).

    The keyword arguments are DDP's, and `compiled`: the module's blocks are compiled.
    """
    replicas = DistributedDataParallel(
        module,
        device_ids=[device] if device.type == "cuda" else None,
        process_group=group,
        bucket_cap_mb=bucket_mib,
        gradient_as_bucket_view=gradient_as_bucket_view,
        find_unused_parameters=find_unused_weights,
        static_graph=static_graph,
    )
    if compiled:
        replicas.forward = without_ddp_splits(replicas.forward)  # type: ignore[method-assign]
    return replicas


def without_ddp_splits(forward: Forward) -> Forward:
    """Keeps the compiler from splitting graphs inside `forward` at DDP's buckets.

    Splitting is meant for models that are compiled as a whole, and fails on recomputation. Blocks
    are small enough for their gradients to be reduced while other blocks compute.
    """
    return torch._dynamo.config.patch(optimize_ddp=False)(forward)


@contextlib.contextmanager
def gradient_sync(module: nn.Module, *, last: bool, keep_gathered: bool) -> Iterator[None]:
    """Reduces gradients of a pass at once, or accumulates them until the last pass of a step.

    Args:
        module: The model.
        last: It is the last pass of a step.
        keep_gathered: See `sync_shards`.
    """
    if isinstance(module, DistributedDataParallel) and not last:
        with module.no_sync():
            yield
        return
    sync_shards(module, last=last, keep_gathered=keep_gathered)
    yield


def sync_shards(module: nn.Module, *, last: bool, keep_gathered: bool) -> None:
    """Has FSDP2 reduce the gradients of the next backward pass; other modules stay as they are.

    Shards are reduced in each pass, or FSDP2 would hold whole gradients; replicas, once a step.

    Args:
        module: The model, or a stage of it.
        last: It is the last backward pass of a step.
        keep_gathered: Weights stay gathered after the other passes. Forward of the next pass needs
            no gather then; FSDP2 would free them after each backward pass.
    """
    if isinstance(module, FSDPModule):
        module.set_reshard_after_backward(last or not keep_gathered)
        module.set_requires_gradient_sync(True)  # torch's pipelining clears it
        module.set_requires_all_reduce(last)


def autocast(compute: str, device: torch.device) -> contextlib.AbstractContextManager[object]:
    """Returns the context of a forward pass in a precision: fp32, bf16 or fp16."""
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(compute)
    return torch.autocast(device.type, dtype=dtype, enabled=dtype is not None)


def share_first_rank(module: nn.Module, group: dist.ProcessGroup, device: torch.device) -> None:
    """Gives every rank the first one's values of a module, where they differ.

    A user's function may draw weights from a generator that nobody seeds. DDP would send the first
    rank's weights to all, other plans would shard a mixture.

    Args:
        module: The same on each rank, but for its values.
        group: All ranks, which call this together.
        device: Device of the communication.
    """
    tensors = [one.detach() for one in (*module.parameters(), *module.buffers())]
    sums = [one.double().sum().item() for one in tensors]
    highest = torch.tensor(sums, dtype=torch.float64, device=device)
    lowest = highest.clone()
    dist.all_reduce(highest, dist.ReduceOp.MAX, group=group)
    dist.all_reduce(lowest, dist.ReduceOp.MIN, group=group)
    if torch.equal(highest, lowest):
        return
    for tensor in tensors:
        sent = tensor.to(device)
        dist.broadcast(sent, group=group, group_src=0)
        tensor.copy_(sent)
