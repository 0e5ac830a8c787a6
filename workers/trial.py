"""One trial on one rank: build, enforce the memory limit, take the worst step, measure."""

import contextlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch
import torch.distributed as dist

from search_spaces.costs.model_work import utilization
from search_spaces.errors import UserError
from search_spaces.facts import ModelFacts, with_findings
from search_spaces.hardware.catalogue import find_device
from search_spaces.hardware.device import Device
from search_spaces.knobs.search_defaults import implementations
from search_spaces.plan import Plan, Precision
from search_spaces.specification.schema import SweepSpec
from search_spaces.specification.sections import ObjectiveSpec
from search_spaces.trial import (
    Activity,
    ActivityKind,
    Agreed,
    Conditions,
    Costs,
    Diverged,
    DoesNotTrain,
    Estimate,
    Measured,
    MemoryReading,
    NoTraining,
    TrialRequest,
    ValidationRun,
)
from workers.data.batches import WORST_STEP, BatchSource, StepBatches
from workers.data.loader import Feed, batch_feed
from workers.engines.base import AbstractTraining
from workers.engines.build import build_training, load_engine
from workers.engines.checkpoint import bytes_in, checkpoint_folder
from workers.engines.stopwatch import Stopwatch
from workers.engines.torch import TorchTraining
from workers.measure.attention import AttentionBackends
from workers.measure.conditions import ConditionsSampler
from workers.measure.loop import Series, measure_steps, synchronize_ranks
from workers.models.built import batch_source
from workers.models.deferred_init import Rounding
from workers.models.function import is_function
from workers.models.load import build
from workers.parallel.compile import compile_seconds
from workers.plain_torch.data_parallel import share_first_rank
from workers.prepare import prepare
from workers.process_groups import Mesh, sum_over_ranks
from workers.tracing.model_work import count_work
from workers.tracing.variants import pass_plan
from workers.worker import Worker, device_name

# By how much a precision rounds at most, relative to the value: 2 to minus its significant bits
ROUNDOFFS: Mapping[Precision, float] = {"fp32": 2**-24, "bf16": 2**-8, "fp16": 2**-11}
WORST_STEPS_BEFORE_EVALUATION = 2  # on the longest samples; one more follows the checkpoint
_WATCH_SECONDS = 1.0
VALIDATION_INTERVAL_RATIO = 0.5  # a validation's confidence interval relative to a trial's
# A validation measures for this many seconds, or for this share of its maximum if that is less.
# Throttling and other slow changes need time to show, however precise the first steps are
VALIDATION_FLOOR_SECONDS, VALIDATION_FLOOR_SHARE = 10.0, 1 / 3


def validation_objective(spec: SweepSpec) -> ObjectiveSpec:
    """Returns the objective of a validation: more steps, and a narrower confidence interval."""
    objective, times = spec.objective, spec.validation.longer
    return objective.model_copy(
        update={
            "min_steps": math.ceil(objective.min_steps * times),
            "max_steps": math.ceil(objective.max_steps * times),
            "max_seconds": objective.max_seconds * times,
            "interval": objective.interval * VALIDATION_INTERVAL_RATIO,
        }
    )


def validation_floor_seconds(objective: ObjectiveSpec) -> float:
    """Returns the seconds of steps that a validation measures at least, unless it is capped.

    Args:
        objective: The validation's, as `validation_objective` returns it.
    """
    return min(VALIDATION_FLOOR_SECONDS, VALIDATION_FLOOR_SHARE * objective.max_seconds)


def validate(
    training: AbstractTraining,
    worst: Callable[[], StepBatches],
    request: TrialRequest,
    group: dist.ProcessGroup | None,
    watch: Stopwatch,
) -> ValidationRun | Diverged:
    """Trains on the longest samples, evaluates, writes a checkpoint, and trains once more.

    Args:
        training: The model and its optimizer, after the measured steps.
        worst: Returns this rank's longest samples.
        request: Names the folder for checkpoints.
        group: The ranks that train together, None for a single rank.
        watch: Records the current phase.

    Returns:
        The validation run; or `Diverged` if a loss is not finite, with the step counted from
        the first one here.

    Raises:
        OSError: If a checkpoint cannot be written.
    """
    random_states = _random_states(training.device)
    parts = [_train(training, worst, watch) for _ in range(WORST_STEPS_BEFORE_EVALUATION)]
    draws = not all(map(torch.equal, random_states, _random_states(training.device)))
    evaluated, evaluation_seconds = _evaluate(training, worst, group, watch)
    size, checkpoint_seconds = _save(training, request.spec, group, watch)
    parts.append(_train(training, worst, watch))
    watch.synchronize()
    # without a loss in evaluation mode, which then holds on all ranks: they have the same model
    all_parts = [*parts, torch.zeros(()) if evaluated is None else evaluated]
    drawing_ranks, checkpoint_bytes, *losses = sum_over_ranks(
        [float(draws), float(size), *(part.item() for part in all_parts)], group, training.device
    )
    for step, loss in enumerate(losses):
        if not math.isfinite(loss):
            return Diverged(step=step, loss="nan" if math.isnan(loss) else "inf", costs=None)
    return ValidationRun(
        worst_steps=1 + len(parts),  # every trial begins with one
        evaluation_seconds=evaluation_seconds,
        evaluation_loss=None if evaluated is None else losses[-1],
        checkpoint_seconds=checkpoint_seconds,
        checkpoint_bytes=int(checkpoint_bytes),
        draws=drawing_ranks > 0,
        dependences=request.dependences,
    )


def _train(
    training: AbstractTraining, worst: Callable[[], StepBatches], watch: Stopwatch
) -> torch.Tensor:
    with watch.during("data"):
        samples = worst()
    return training.step(samples.batches, samples.targets, watch)


def _evaluate(
    training: AbstractTraining,
    worst: Callable[[], StepBatches],
    group: dist.ProcessGroup | None,
    watch: Stopwatch,
) -> tuple[torch.Tensor | None, float]:
    """Returns this rank's part of the loss, and the seconds until all ranks are done."""
    samples = worst()
    synchronize_ranks(group, watch)
    watch.phase, started = "evaluation", time.perf_counter()
    loss = training.evaluate(samples.batches, samples.targets)
    synchronize_ranks(group, watch)
    return loss, time.perf_counter() - started


def _save(
    training: AbstractTraining, spec: SweepSpec, group: dist.ProcessGroup | None, watch: Stopwatch
) -> tuple[int, float]:
    """Returns the bytes that this rank wrote, and the seconds until all ranks are done."""
    watch.phase, started = "checkpoint", time.perf_counter()
    with checkpoint_folder(spec) as folder:
        training.save(folder)
        size = bytes_in(folder)
        synchronize_ranks(group, watch)
        seconds = time.perf_counter() - started
    return size, seconds


def _random_states(device: torch.device) -> list[torch.Tensor]:
    states = [torch.get_rng_state()]
    if device.type != "cpu":
        states.append(torch.get_device_module(device).get_rng_state(device))
    return states


def train_and_measure(
    request: TrialRequest, worker: Worker, mesh: Mesh | None, watch: Stopwatch
) -> Agreed:
    """Trains the request's plan and returns this rank's measurement.

    A validation measures for longer and then runs `validate`.

    The model is built before the memory limit is enforced. With engine torch each rank
    initializes its own shard only. DeepSpeed, and models made by a user's function, start from
    the whole model on each rank, which must not count against the plan.
    """
    plan, spec = request.plan, request.spec
    # both stay for later trials, so they come before the memory baseline
    facts = with_findings(prepare(spec), request.step)
    load_engine(plan, worker.device)
    worker.meter.open()
    worker.watch(_activity(request, ActivityKind.BUILDING))
    started = time.perf_counter()
    training, source = _build(request, facts, mesh, worker.device)
    data_rank, group = (mesh.place.data, mesh.group) if mesh else (0, None)
    build_seconds = time.perf_counter() - started

    with (
        contextlib.closing(training),
        batch_feed(source, plan, data_rank, worker.device) as feed,
        ConditionsSampler.running(worker.device) as sampler,
        worker.meter.enforced(),
    ):
        counted = _counted(feed, plan, group, worker.device)
        worker.watch(_activity(request, ActivityKind.WARMING_UP))
        first_step_at = time.perf_counter()
        names, loss = _worst_step(training, counted, watch, plan)
        untrained = _untrained(training.gradient_norms, loss, group, worker.device)
        worker.meter.check()
        sampler.begin()
        series = untrained or _measure(training, counted, request, worker, group, watch)
        steps_seconds = time.perf_counter() - first_step_at
        conditions = sampler.read()
        validation = None
        if request.validation and isinstance(series, Series):
            # not from the feed, whose loader processes yield each step once and in order
            anew = _counted(partial(source.step, plan, data_rank), plan, group, worker.device)
            worker.watch(_activity(request, ActivityKind.EVALUATING))
            validation = validate(training, partial(anew, WORST_STEP), request, group, watch)
        skew = _skew(training, mesh)
        compiled = compile_seconds() if plan.compile else 0.0
        worker.meter.check()
        memory = worker.meter.reading(worker.ranks.rank, training.state_bytes())
    if isinstance(series, NoTraining):
        return series
    if not (norms := training.gradient_norms):
        return DoesNotTrain(norm="inf", costs=None)  # fp16 skipped every step
    if isinstance(validation, Diverged):
        return replace(validation, step=len(series.losses) + validation.step)
    costs = _costs(build_seconds, steps_seconds, compiled)
    run = _measured(request, facts, series, worker.device, memory, conditions, costs)
    run = replace(run, validation=validation, expert_skew=skew)
    return replace(run, attention_backends=names, gradient_norm=norms[0])


def _skew(training: AbstractTraining, mesh: Mesh | None) -> float | None:
    """Returns `Measured.expert_skew`; all ranks call it together."""
    if mesh is None or mesh.experts is None:
        return None
    from workers.parallel.experts import expert_skew  # needs transformers

    assert isinstance(training, TorchTraining)
    return expert_skew(training.module, mesh, training.device)


def _costs(build_seconds: float, steps_seconds: float, compiled: float) -> Costs:
    """Returns the costs of a trial, in seconds; `workers.entry` sets the others when it is over."""
    return Costs(
        build_seconds=build_seconds,
        steps_seconds=steps_seconds,
        total_seconds=0.0,
        residual_bytes=0,
        compile_seconds=compiled,
    )


def _untrained(
    norms: Sequence[float], loss: float, group: dist.ProcessGroup | None, device: torch.device
) -> DoesNotTrain | None:
    """Returns the outcome of a first step with a finite loss and a gradient of 0, inf or NaN."""
    (loss,) = sum_over_ranks([loss], group, device)
    norm = next(iter(norms), 1.0)  # none after a step that fp16 skipped
    trains = 0 < norm < math.inf or not math.isfinite(loss)
    return None if trains else DoesNotTrain(norm=f"{norm:g}", costs=None)


def _measure(
    training: AbstractTraining,
    feed: Feed,
    request: TrialRequest,
    worker: Worker,
    group: dist.ProcessGroup | None,
    watch: Stopwatch,
) -> Series | Diverged:
    spec = request.spec
    objective = validation_objective(spec) if request.validation else spec.objective
    return measure_steps(
        training,
        feed,
        objective,
        group,
        watch,
        request.incumbent,
        validation_floor_seconds(objective) if request.validation else 0.0,
        worker.meter.allocator_retries,
        request.noise,
        _step_watcher(request, worker, objective.max_steps),
    )


def _step_watcher(
    request: TrialRequest, worker: Worker, most: int
) -> Callable[[int, Callable[[], Estimate | None]], None]:
    """Returns a function that tells of the steps about once a second, between timed windows."""
    next_at = 0.0

    def watch(steps: int, estimate: Callable[[], Estimate | None]) -> None:
        nonlocal next_at
        if (now := time.monotonic()) < next_at:
            return
        next_at, seconds = now + _WATCH_SECONDS, estimate()
        kind = ActivityKind.MEASURING if seconds else ActivityKind.WARMING_UP
        rate = seconds and seconds.rate_of(request.plan.global_batch)
        worker.watch(
            replace(_activity(request, kind), count=steps, most=most, samples_per_second=rate)
        )

    return watch


def _activity(request: TrialRequest, kind: ActivityKind) -> Activity:
    return Activity(kind=kind, trial=request.number, validation=request.validation)


def _counted(feed: Feed, plan: Plan, group: dist.ProcessGroup | None, device: torch.device) -> Feed:
    return lambda step: feed(step).counted_over(plan, group, device)


def _build(
    request: TrialRequest, facts: ModelFacts, mesh: Mesh | None, device: torch.device
) -> tuple[AbstractTraining, BatchSource]:
    model = build(request.spec.model, request.spec.train, attention=request.plan.attention)
    if is_function(request.spec.model) and mesh is not None:
        share_first_rank(model.module, mesh.group, device)
    if request.perturbed:
        rounding = Rounding(roundoff=ROUNDOFFS[request.plan.precision], seed=request.number)
        model = replace(model, initial=replace(model.initial, rounding=rounding))
    source = batch_source(model, request.spec, facts.target_rule)
    return build_training(request, model, facts, mesh, device), source


def _measured(
    request: TrialRequest,
    facts: ModelFacts,
    series: Series,
    device: torch.device,
    memory: MemoryReading,
    conditions: Conditions,
    costs: Costs,
) -> Measured:
    plan, spec = request.plan, request.spec
    step = series.step_seconds
    work, tokens_per_second = count_work(spec), series.tokens / step.value
    used = utilization(
        work, facts, _device(device), plan.precision, tokens_per_second / plan.world_size
    )
    return Measured(
        samples_per_second=step.rate_of(plan.global_batch),
        tokens_per_second=tokens_per_second,
        step_seconds=step,
        phases=series.phases,
        mfu=used.mfu,
        flops_per_step=None if work is None else work.flops_per_token * series.tokens,
        ceiling=used.ceiling,
        paper_mfu=used.paper_mfu,
        memory=replace(memory, allocator_retries=series.allocator_retries),
        conditions=conditions,
        warmup_steps=1 + sum(window.steps for window in series.windows[: series.warmup]),
        measured_steps=sum(window.steps for window in series.steady),
        losses=series.losses,
        stall_seconds=series.stall_seconds,
        joules_per_token=series.joules_per_token,
        seconds_by_step=tuple(float(f"{each:.4g}") for each in series.seconds_by_step),
        costs=costs,
        beaten=series.beaten,
        perturbed=request.perturbed,
    )


def _worst_step(
    training: AbstractTraining, feed: Feed, watch: Stopwatch, plan: Plan
) -> tuple[tuple[str, ...], float]:
    """Trains on the longest samples; returns attention backends unless it compiles, and the loss.

    A long run will meet the longest samples: the memory peak must include them.
    """
    with watch.during("data"):
        worst = feed(WORST_STEP)
    backends = AttentionBackends()
    with contextlib.nullcontext() if plan.compile else backends:
        loss = training.step(worst.batches, worst.targets, watch)
    watch.synchronize()
    return backends.names, loss.item()


def train_one_step(spec: SweepSpec, worker: Worker) -> None:
    """Trains one step on one sample, on this rank alone, without a memory limit."""
    facts = prepare(spec)
    plan = replace(
        pass_plan(1),
        attention=facts.attentions[0],
        precision=spec.train.precision,
        optimizer=implementations(spec.train.optimizer)[0],
    )
    request = TrialRequest(number=-1, plan=plan, spec=spec)
    training, source = _build(request, facts, None, worker.device)
    samples = source.step(plan, 0, 0)
    with contextlib.closing(training):
        training.step(samples.batches, samples.targets, Stopwatch(worker.runtime))


def _device(device: torch.device) -> Device | None:
    """Returns the device as it was probed on this machine, else as in the catalogue."""
    known = "cpu" if device.type == "cpu" else device_name(device)
    with contextlib.suppress(UserError):
        return find_device(known)
    return None
