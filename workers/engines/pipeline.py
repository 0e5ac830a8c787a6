"""Engine `torch` with a pipeline: stages that hand micro-batches on, by torch's schedules."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    schedules,
)
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, PipelineScheduleSingle

from search_spaces.errors import ModelError
from search_spaces.settings.render import PipelineSettings, TorchSettings
from workers.data.collate import MicroBatch, to_common_shape
from workers.engines.base import AbstractTraining, StateBytes
from workers.engines.checkpoint import write_shard
from workers.engines.optimizer_step import Update
from workers.engines.stage_module import StageModule, TiedWeights
from workers.engines.state_bytes import state_bytes
from workers.measure.stopwatch import AbstractStopwatch
from workers.models.stack_trace import HiddenShape
from workers.parallel.compile import forget_compiled

_LOGGER = logging.getLogger(schedules.__name__)

TorchSchedule = PipelineScheduleSingle | PipelineScheduleMulti


class PipelineRunner:
    """The stages of this rank and their connection to those of other ranks.

    torch's stages receive into buffers of one shape, which are made anew when the shape of the
    hidden states changes; a step has micro-batches of one shape.
    """

    def __init__(
        self,
        stages: Mapping[int, StageModule],
        settings: PipelineSettings,
        hidden: HiddenShape,
        sent_as: torch.dtype | None,
        group: dist.ProcessGroup,
        device: torch.device,
    ) -> None:
        """Connects the stages.

        Args:
            stages: This rank's, by their number among all.
            settings: How many there are, and in which order they work.
            hidden: Tells what is sent from stage to stage.
            sent_as: Type of hidden states if it is not that of the weights.
            group: The ranks of the pipeline.
            device: Where the stages are.
        """
        self._stages = dict(stages)
        self._settings = settings
        self._hidden, self._sent_as = hidden, sent_as
        self._group, self._device = group, device
        self._schedule: TorchSchedule | None = None
        self._laid_out_for: tuple[object, ...] = ()

    def run(
        self,
        batches: Sequence[MicroBatch],
        weights: Sequence[float],
        update: Update,
        *,
        trains: bool = True,
    ) -> list[torch.Tensor]:
        """Forward and backward passes of a step's micro-batches, all of one shape.

        Without backward passes and gradients if nothing `trains`.

        Returns:
            Their weighted losses if the last stage is on this rank, else nothing.
        """
        hidden = self._hidden.of(batches[0].inputs)
        sent_as = self._sent_as or hidden.dtype
        schedule = self._schedule_for(len(batches), hidden.shape, sent_as)
        inputs = [batch.on(self._device) for batch in batches]
        for stage in self._stages.values():
            stage.load(inputs, weights, update, sent_as)
        _run(schedule, len(batches), trains=trains)
        for stage in self._stages.values():
            stage.unload()
        return [part for stage in self._stages.values() for part in stage.parts]

    def _schedule_for(
        self, micro_batches: int, shape: torch.Size, dtype: torch.dtype
    ) -> TorchSchedule:
        layout = (micro_batches, shape, dtype)
        if self._schedule is None or layout != self._laid_out_for:
            self._schedule = None  # its buffers go before others come
            states = torch.empty(shape, dtype=dtype, device="meta", requires_grad=True)
            self._schedule = self._lay_out(micro_batches, states)
            self._laid_out_for = layout
        return self._schedule

    def _lay_out(self, micro_batches: int, states: torch.Tensor) -> TorchSchedule:
        loss = torch.empty((), device="meta", requires_grad=True)
        count = len(self._settings.stages)
        stages: list[Any] = [
            PipelineStage(
                stage,
                index,
                count,
                self._device,
                input_args=() if index == 0 else (states,),
                output_args=(loss if index == count - 1 else states,),
                group=self._group,
            )
            for index, stage in self._stages.items()
        ]
        options: dict[str, Any] = {"loss_fn": _as_it_is, "scale_grads": False}
        match self._settings.schedule:
            case "gpipe":
                return ScheduleGPipe(stages[0], micro_batches, **options)
            case "1f1b":
                return Schedule1F1B(stages[0], micro_batches, **options)
            case "interleaved":
                return ScheduleInterleaved1F1B(stages, micro_batches, **options)


def _run(schedule: TorchSchedule, micro_batches: int, *, trains: bool) -> None:
    """A step; what a forward pass raises comes out as it is, not wrapped as torch does it."""
    # each stage looks up its inputs by number: all of them have the micro-batches
    numbers = torch.arange(micro_batches)
    failure: BaseException | None = None
    logged, _LOGGER.disabled = _LOGGER.disabled, True  # it would print the schedule with each error
    try:
        if trains:
            schedule.step(number=numbers, target=numbers, return_outputs=False)
        else:
            with torch.no_grad():
                schedule.eval(number=numbers, target=numbers, return_outputs=False)
    except RuntimeError as error:
        if error.__cause__ is None:
            raise
        failure = error.__cause__
    finally:
        _LOGGER.disabled = logged
    try:
        if failure is not None:
            raise failure
    finally:
        del failure  # with this frame, which the error holds, it would be a cycle


def _as_it_is(loss: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    """The last stage gives the loss itself."""
    return loss


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineTraining(AbstractTraining):
    """The stages of this rank, under DDP, FSDP2 or alone among the ranks of the same stages.

    Forward and backward passes alternate as the schedule wants it, and wait for other stages in
    between: they are counted together, as backward.
    """

    module: nn.Module  # all stages of this rank
    conveyor: PipelineRunner
    tied: TiedWeights | None
    update: Update
    settings: TorchSettings
    device: torch.device
    data: int  # data-parallel ranks, over which gradients are averaged
    counts: bool  # whether this rank's loss counts: of the ranks that split a block, one does
    writes: bool = True  # whether this rank has a part in checkpoints: of replicas, one does
    pads: bool  # whether batches are of Plimsoll's own data, which can be filled up

    def step(
        self, batches: Sequence[MicroBatch], targets: int, watch: AbstractStopwatch
    ) -> torch.Tensor:
        with watch.during("data"):
            alike = self._alike(batches)
            # the ranks' gradients are averaged, the parts of the loss add up
            weights = [batch.targets / targets * self.data for batch in alike]
        with watch.during("backward"):
            parts = self.conveyor.run(alike, weights, self.update)
            if self.tied is not None:
                self.tied.add_up()
        with watch.during("optimizer"):
            self.update.step()
        return self._added_up(parts) / self.data

    def evaluate(self, batches: Sequence[MicroBatch], targets: int) -> torch.Tensor:
        """The last stage must give a loss in evaluation mode too: torch's schedules want one."""
        self.module.eval()
        alike = self._alike(batches)
        weights = [batch.targets / targets for batch in alike]
        parts = self.conveyor.run(alike, weights, self.update, trains=False)
        self.module.train()
        return self._added_up(parts)

    def save(self, folder: Path) -> None:
        if self.writes:
            write_shard(self.module, self.update.optimizer, folder)

    def state_bytes(self) -> StateBytes:
        return state_bytes(self.module, self.update.optimizer, self.settings, self.device)

    def close(self) -> None:
        """Beyond tensors there is what was compiled, which guards hold on to."""
        if self.settings.compile:
            forget_compiled()

    def _alike(self, batches: Sequence[MicroBatch]) -> Sequence[MicroBatch]:
        return to_common_shape(batches) if self.pads else _of_one_shape(batches)

    def _added_up(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """This rank's part of the loss from those of its last stage; 0 if it has none."""
        if not parts:
            return torch.zeros((), device=self.device)
        return torch.stack(list(parts)).sum() * self.counts


def _of_one_shape(batches: Sequence[MicroBatch]) -> Sequence[MicroBatch]:
    shapes = [{name: tuple(value.shape) for name, value in b.inputs.items()} for b in batches]
    for shape in shapes:
        if shape != shapes[0]:
            raise ModelError(
                "a pipeline needs micro-batches of one shape, the batch maker made"
                f" {shapes[0]} and {shape}"
            )
    return batches
