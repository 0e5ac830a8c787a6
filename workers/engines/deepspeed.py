"""Engine `deepspeed`: optimizer steps under ZeRO, and bytes of model state."""

import contextlib
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from deepspeed.runtime.utils import clip_grad_norm_
from torch import nn

from search_spaces.settings.deepspeed_config import DeepSpeedSettings
from search_spaces.settings.optimizer import render_schedule
from search_spaces.specification.sections import TrainSpec
from workers.data.collate import MicroBatch
from workers.engines.base import AbstractTraining, evaluation_loss
from workers.engines.stopwatch import Stopwatch
from workers.memory.meter import StateBytes
from workers.models.built import BuiltModel
from workers.parallel.deepspeed import DeepSpeedState, Engine, OptimizerMaker, make_engine
from workers.plain_torch.blocks import reset_compiler
from workers.plain_torch.loss import loss_of
from workers.plain_torch.update import make_scheduler
from workers.process_groups import Mesh

_TAG = "checkpoint"  # DeepSpeed's name for a subfolder


def zero_state_bytes(engine: Any, device: torch.device) -> StateBytes:
    """Returns bytes of model state on the device after a step, from the engine's tensors.

    Each storage counts once. Master weights are optimizer states. Gradients are released at the
    end of a step and count as they were before: whole in stages 0 and 1, this rank's part in
    stages 2 and 3.
    """
    weights = _storages(device, _weights(engine.module))
    states = {
        address: size
        for address, size in _storages(device, _optimizer_tensors(engine)).items()
        if address not in weights
    }
    return StateBytes(
        weights=sum(weights.values()),
        gradients=_gradients(engine, device),
        optimizer_states=sum(states.values()),
    )


def _weights(module: torch.nn.Module) -> Iterator[torch.Tensor]:
    # under ZeRO-3 both a shard and, for small weights, the whole values
    for weight in module.parameters():
        yield weight.data
        shard = getattr(weight, "ds_tensor", None)
        if shard is not None:
            yield shard.data


def _masters(engine: Any) -> list[torch.Tensor]:
    # flat fp32 copies, or the weights themselves
    groups = engine.basic_optimizer.param_groups
    # ZeRO-3 puts its flat groups into the optimizer one after the other
    flat = getattr(engine.optimizer, "fp32_partitioned_groups_flat", None)
    return list(flat or chain.from_iterable(group["params"] for group in groups))


def _optimizer_tensors(engine: Any) -> Iterator[torch.Tensor]:
    yield from _masters(engine)
    for state in engine.basic_optimizer.state.values():
        yield from (value for value in state.values() if isinstance(value, torch.Tensor))


def _gradients(engine: Any, device: torch.device) -> int:
    buffer = getattr(engine.optimizer, "grad_partitions_flat_buffer", None)  # ZeRO-3
    if buffer is not None:
        return sum(_storages(device, [buffer]).values())
    trained = [weight for weight in engine.module.parameters() if weight.requires_grad]
    if engine.zero_optimization_partition_gradients():
        masters = sum(master.numel() for master in _masters(engine))
        return masters * trained[0].element_size() if trained[0].device.type == device.type else 0
    return sum(weight.numel() * weight.element_size() for weight in trained)


def _storages(device: torch.device, tensors: Iterable[torch.Tensor]) -> dict[int, int]:
    # by address, so that tensors of one storage count once
    return {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
        for tensor in tensors
        if tensor.device.type == device.type and tensor.numel() > 0
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepSpeedTraining(AbstractTraining):
    """A whole model on each rank, its states split over data ranks by ZeRO."""

    engine: Engine
    world: DeepSpeedState
    device: torch.device
    data: int  # data-parallel ranks, over which gradients are averaged
    gradient_norms: list[float] = field(default_factory=list)

    @property
    def module(self) -> nn.Module:
        """The model inside the engine."""
        return self.engine.module

    def step(self, batches: Sequence[MicroBatch], targets: float, watch: Stopwatch) -> torch.Tensor:
        parts = []
        for index, batch in enumerate(batches):
            with watch.during("data"):
                inputs = batch.on(self.device)
            # set each time, since a step may have fewer micro-batches than the plan (packing)
            self.engine.set_gradient_accumulation_boundary(index == len(batches) - 1)
            with watch.during("forward"):
                part = loss_of(self.engine(**inputs)) * (batch.targets / targets)
            with watch.during("backward"):
                # times `data`: DeepSpeed averages gradients over ranks, while loss parts add up
                self.engine.backward(part * self.data, scale_wrt_gas=False)
            parts.append(part.detach())
        with watch.during("optimizer"):
            self._update()
        return torch.stack(parts).sum()

    def _update(self) -> None:
        """Updates the weights, and notes the norm of the first gradient that does."""
        engine, norms, own = self.engine, self.gradient_norms, None
        if not norms and not hasattr(engine.optimizer, "_global_grad_norm"):  # ZeRO 0 in fp32
            weights = [weight for weight in self.module.parameters() if weight.grad is not None]
            own = clip_grad_norm_(weights, math.inf) if weights else 0.0
        engine.step()
        if norms or (engine.fp16_enabled() and engine.optimizer.overflow):
            return
        norm = float(engine.get_global_grad_norm() if own is None else own)
        if engine.fp16_enabled() and not engine.zero_optimization():  # it is of the scaled loss
            norm /= engine.optimizer.loss_scale_config.cur_scale
        norms.append(norm if norm >= 0 else math.nan)  # -1: not finite

    def evaluate(self, batches: Sequence[MicroBatch], targets: float) -> torch.Tensor | None:
        return evaluation_loss(self.engine, batches, targets, self.device)

    def save(self, folder: Path) -> None:
        self.engine.save_checkpoint(str(folder), tag=_TAG, save_latest=False)

    def state_bytes(self) -> StateBytes:
        return zero_state_bytes(self.engine, self.device)

    def close(self) -> None:
        try:
            self.engine.destroy()
        finally:
            self.world.close()
            reset_compiler()


def start_deepspeed(
    model: BuiltModel,
    settings: DeepSpeedSettings,
    mesh: Mesh | None,
    device: torch.device,
    train: TrainSpec,
    optimizer_of: OptimizerMaker,
) -> DeepSpeedTraining:
    """Starts DeepSpeed's engine for a model, over the ranks of the mesh."""
    with contextlib.ExitStack() as on_failure:
        world = DeepSpeedState(mesh, device)
        on_failure.callback(world.close)
        schedule = render_schedule(train)
        scheduler_of = None if schedule is None else partial(make_scheduler, **asdict(schedule))
        engine = make_engine(model, settings, device, optimizer_of, scheduler_of)
        on_failure.pop_all()
    return DeepSpeedTraining(
        engine=engine,
        world=world,
        device=device,
        data=1 if mesh is None else mesh.size("replicate", "shard"),
    )
