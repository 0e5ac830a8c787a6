"""Engine `torch` with a pipeline: stages under torch's pipeline schedules."""

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, schedules
from torch.distributed.pipelining.schedules import (
    PipelineScheduleMulti,
    PipelineScheduleSingle,
    _ComputationType,
    _PipelineScheduleRuntime,
    get_schedule_class,
)

from search_spaces.errors import ModelError
from search_spaces.settings.render import PipelineSettings, TorchSettings
from search_spaces.settings.schedules import SCHEDULES
from search_spaces.specification.sections import TrainSpec
from workers.data.collate import MicroBatch, pad_to_common_shape
from workers.data.user_batches import inputs_of
from workers.engines.gradient_average import GradientAverage
from workers.engines.optimizer_step import make_norm, make_update
from workers.engines.stage_module import StageModule, TiedWeights
from workers.engines.stopwatch import Stopwatch
from workers.engines.torch_base import AbstractTorchTraining
from workers.models.built import PROBE_SAMPLES, BuiltModel
from workers.models.stack import Stack, find_stack
from workers.models.stack_trace import HiddenShape, shapes_of
from workers.models.tensor_plan import tensor_plan
from workers.parallel.apply import parallelize
from workers.parallel.pipeline import Splits, Stage, cut_stages, stage_settings
from workers.plain_torch.update import Update
from workers.process_groups import Mesh

_LOGGER = logging.getLogger(schedules.__name__)
_FORWARD = frozenset((_ComputationType.FORWARD, _ComputationType.SEND_F, _ComputationType.RECV_F))
_TORCH_NAMES = {  # torch looks up the others by the same name
    "interleaved": "Interleaved1F1B",
    "interleaved_zero_bubble": "InterleavedZeroBubble",
    "zbv": "ZBVZeroBubble",
}

TorchSchedule = PipelineScheduleSingle | PipelineScheduleMulti


class PipelineRunner:
    """The stages of this rank, connected to those of other ranks.

    All micro-batches of a step have one shape. torch's stages receive into buffers of that
    shape; they are rebuilt when the shape of the hidden states changes.
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
            stages: Stages of this rank, by their index among all stages.
            settings: All stages, and the schedule.
            hidden: Shape and type of the hidden states between stages.
            sent_as: Type of the hidden states if it differs from that of the weights.
            group: The ranks of the pipeline.
            device: The device of the stages.
        """
        self._stages = dict(stages)
        self._settings = settings
        self._hidden, self._sent_as = hidden, sent_as
        self._group, self._device = group, device
        self._schedule: TorchSchedule | None = None
        self._schedule_key: tuple[object, ...] = ()

    def run(
        self,
        batches: Sequence[MicroBatch],
        weights: Sequence[float],
        update: Update,
        *,
        trains: bool = True,
    ) -> list[torch.Tensor]:
        """Runs forward and backward passes of a step's micro-batches, all of one shape.

        With `trains=False` it runs forward passes only, without gradients.

        Returns:
            Their weighted losses if the last stage is on this rank, else an empty list.
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
        key = (micro_batches, shape, dtype)
        if self._schedule is None or key != self._schedule_key:
            self._schedule = None  # frees its buffers before new ones are allocated
            states = torch.empty(shape, dtype=dtype, device="meta", requires_grad=True)
            self._schedule = self._make_schedule(micro_batches, states)
            self._schedule_key = key
        return self._schedule

    def _make_schedule(self, micro_batches: int, states: torch.Tensor) -> TorchSchedule:
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
        # the last stage returns the weighted loss
        options: dict[str, Any] = {"loss_fn": lambda loss, _: loss, "scale_grads": False}
        name = self._settings.schedule
        schedule: Any = get_schedule_class(_TORCH_NAMES.get(name, name))
        is_multi = issubclass(schedule, PipelineScheduleMulti)
        return schedule(stages if is_multi else stages[0], micro_batches, **options)


def _run(schedule: TorchSchedule, micro_batches: int, *, trains: bool) -> None:
    """Runs a step; unwraps errors of a forward pass, which torch wraps in a RuntimeError."""
    # stages look up their inputs by number, since every stage has all micro-batches
    numbers = torch.arange(micro_batches)
    failure: BaseException | None = None
    was_disabled, _LOGGER.disabled = _LOGGER.disabled, True  # logs the schedule with each error
    try:
        if trains:
            schedule.step(number=numbers, target=numbers, return_outputs=False)
        else:
            with torch.no_grad(), _forward_alone(schedule):
                schedule.eval(number=numbers, target=numbers, return_outputs=False)
    except RuntimeError as error:
        if error.__cause__ is None:
            raise
        failure = error.__cause__
    finally:
        _LOGGER.disabled = was_disabled
    try:
        if failure is not None:
            raise failure
    finally:
        del failure  # else a reference cycle: the error holds this frame


@contextlib.contextmanager
def _forward_alone(schedule: TorchSchedule) -> Iterator[None]:
    """Has a schedule run only its forward passes, for the length of the block.

    torch skips backward passes that have nothing to do, but in between hands gradients, which are
    not there, from one stage to the other of a rank that has two neighbours (torch 2.13).
    """
    if not isinstance(schedule, _PipelineScheduleRuntime):
        yield
        return
    whole = schedule.pipeline_order_with_comms
    schedule.pipeline_order_with_comms = {
        rank: [
            part
            for action in actions
            for part in action.sub_actions or (action,)
            if part.computation_type in _FORWARD
        ]
        for rank, actions in whole.items()
    }
    try:
        yield
    finally:
        schedule.pipeline_order_with_comms = whole


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineTraining(AbstractTorchTraining):
    """The stages of this rank, under DDP, FSDP2, an average of their own, or without data ranks.

    Forward and backward passes alternate by the schedule and wait for other stages in between.
    Their time counts as backward.
    """

    runner: PipelineRunner
    average: GradientAverage | None
    tied: TiedWeights | None
    pads: bool  # batches come from Plimsoll's own data, which can be padded to one shape

    def step(self, batches: Sequence[MicroBatch], targets: float, watch: Stopwatch) -> torch.Tensor:
        with watch.during("data"):
            batches = self._to_one_shape(batches)
            # times `data`: gradients are averaged over ranks, while loss parts add up
            weights = [batch.targets / targets * self.data for batch in batches]
        with watch.during("backward"):
            parts = self.runner.run(batches, weights, self.update)
            if self.average is not None:
                self.average.run()
            if self.tied is not None:
                self.tied.add_up()
        with watch.during("optimizer"):
            self.apply_update()
        return self._sum(parts) / self.data

    def evaluate(self, batches: Sequence[MicroBatch], targets: float) -> torch.Tensor:
        """Evaluates; the model must return a loss, which torch's schedules require."""
        self.module.eval()
        batches = self._to_one_shape(batches)
        weights = [batch.targets / targets for batch in batches]
        parts = self.runner.run(batches, weights, self.update, trains=False)
        self.module.train()
        return self._sum(parts)

    def _to_one_shape(self, batches: Sequence[MicroBatch]) -> Sequence[MicroBatch]:
        return pad_to_common_shape(batches) if self.pads else _check_shapes(batches)

    def _sum(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        if not parts:  # the last stage is on another rank
            return torch.zeros((), device=self.device)
        return torch.stack(list(parts)).sum() * self.counts


def _check_shapes(batches: Sequence[MicroBatch]) -> Sequence[MicroBatch]:
    shapes = [dict(shapes_of(batch.inputs)) for batch in batches]
    for shape in shapes:
        if shape != shapes[0]:
            raise ModelError(
                "a pipeline needs micro-batches of one shape, but the batch maker returned"
                f" {shapes[0]} and {shape}"
            )
    return batches


def build_pipeline(
    model: BuiltModel, settings: TorchSettings, train: TrainSpec, mesh: Mesh, device: torch.device
) -> PipelineTraining:
    """Applies a plan with a pipeline to the model and makes its optimizer.

    Raises:
        NoStackError: If the model cannot be cut into stages; rules refuse such plans earlier.
    """
    pipeline = settings.pipeline
    assert pipeline is not None
    maker = model.batch_maker
    stack = find_stack(
        model.module,
        None if maker is None else lambda: inputs_of(model.module, maker(PROBE_SAMPLES)),
    )
    stages = cut_stages(model, stack, pipeline, mesh.place.stage, _named_splits(model, settings))
    passes = {stage.index: _parallel_pass(stage, settings, mesh, device) for stage in stages}
    if SCHEDULES[pipeline.schedule].is_v_shaped:
        tied = None
        _tie(stages, stack)
    else:
        tied = _tied_weights(stages, stack, pipeline, mesh, device)
    is_first = mesh.place.stage == 0
    module = nn.ModuleList(passes.values()).train()
    norm = make_norm(mesh, device, tied.weights if tied is not None and not is_first else ())
    return PipelineTraining(
        module=module,
        runner=PipelineRunner(
            passes,
            pipeline,
            HiddenShape(model.module, stack.blocks[0], stack.form),
            _sent_as(settings),
            mesh.devices.get_group("pipeline"),
            device,
        ),
        average=_average(module, pipeline, mesh),
        tied=tied,
        update=make_update(module, settings.optimizer_kind, train, settings.compute, norm),
        norm=norm,
        settings=settings,
        device=device,
        data=mesh.size("replicate", "shard"),
        counts=mesh.place.tensor == 0,
        writes=mesh.is_first_replica,
        pads=model.batch_maker is None,
    )


def _named_splits(model: BuiltModel, settings: TorchSettings) -> Splits:
    # from the whole model, since a stage does not show which weights are tied
    if settings.tensor == 1:
        return model.tensor_plan
    plan = tensor_plan(model.module, dict(model.tensor_plan))
    summed = ((name, "replicated_with_grad_allreduce") for name in plan.summed)
    return (*plan.splits, *plan.vocabulary, *summed)


def _parallel_pass(
    stage: Stage, settings: TorchSettings, mesh: Mesh, device: torch.device
) -> StageModule:
    assert settings.pipeline is not None
    own = stage_settings(settings, settings.pipeline.stages[stage.index])
    module = parallelize(stage.model, own, mesh, device)
    return StageModule(module, stage.passage, settings, device, is_last=stage.is_last)


def _average(module: nn.Module, settings: PipelineSettings, mesh: Mesh) -> GradientAverage | None:
    if settings.average_mib is None:
        return None
    return GradientAverage(
        weights=tuple(module.parameters()), bucket_mib=settings.average_mib, group=mesh.data_group
    )


def _tie(stages: Sequence[Stage], stack: Stack) -> None:
    """Makes tied weights one again on a rank that has both ends of the pipeline."""
    first, last = stages[0], stages[-1]
    if first.index != 0 or not last.is_last:
        return
    weights = dict(first.model.module.named_parameters())
    for name, other in stack.tied:
        owner, _, leaf = other.rpartition(".")
        last.model.module.get_submodule(owner).register_parameter(leaf, weights[name])


def _tied_weights(
    stages: list[Stage], stack: Stack, settings: PipelineSettings, mesh: Mesh, device: torch.device
) -> TiedWeights | None:
    """Weights that this rank shares with the other end of the pipeline, None without any."""
    group: dist.ProcessGroup = mesh.devices.get_group("pipeline")
    for stage in stages:
        weights = dict(stage.model.module.named_parameters())
        is_first = stage.index == 0
        if stack.tied and (is_first or stage.is_last):
            return TiedWeights(
                weights=tuple(weights[names[0 if is_first else 1]] for names in stack.tied),
                peer=settings.ranks - 1 if is_first else 0,
                group=group,
                device=device,
            )
    return None


def _sent_as(settings: TorchSettings) -> torch.dtype | None:
    # FSDP2 and bf16 weights compute whole blocks in one precision; autocast does not cast between
    if settings.fsdp2 is None and settings.states == "fp32":
        return None
    return {"bf16": torch.bfloat16, "fp16": torch.float16}.get(settings.compute)
