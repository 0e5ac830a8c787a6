"""One trial on one rank: build, put the limit in force, take the worst step, measure."""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from functools import partial

from search_spaces.estimate import Estimate
from search_spaces.outcome import Anatomy, Costs, Diverged, Measured, MemoryReading
from search_spaces.plan import Plan
from search_spaces.request import TrialRequest
from search_spaces.spec.schema import SweepSpec
from workers.data import batch_source
from workers.data.batches import WORST_STEP
from workers.data.loader import Feed, feeding
from workers.engines import AbstractTraining, StateBytes
from workers.measure import flops
from workers.measure.conditions import ConditionsSampler
from workers.measure.loop import Series, measure_steps
from workers.measure.stopwatch import AbstractStopwatch, stopwatch_for
from workers.memory.meter import Peak
from workers.mesh import Mesh
from workers.models import build
from workers.parallel.compiling import compile_seconds
from workers.preparation import prepare
from workers.proving import longer, prove
from workers.training import build_training, load_engine
from workers.worker import Worker


def train_and_measure(
    request: TrialRequest,
    worker: Worker,
    mesh: Mesh | None,
    watch: AbstractStopwatch,
) -> Measured | Diverged:
    """Trains the request's plan and says what it measured, as this rank saw it.

    A proof measures for longer and then does what `workers.proving` says.

    The model is built before the limit is in force. With engine torch each rank gives values to
    its own shard alone; DeepSpeed, and a function of the user's, start from the whole model on
    each rank, which is not what the plan is judged by.
    """
    plan, spec = request.plan, request.spec
    facts = prepare(spec)  # kept for the next trial, so that it is no part of what this one takes
    load_engine(plan, worker.device)  # likewise
    worker.meter.open()
    started = time.perf_counter()
    model = build(spec.model, spec.train, attention=plan.attention)
    source = batch_source(model, spec)
    training = build_training(request, model, facts, mesh, worker.device)
    del model
    data_rank = mesh.place.data if mesh else 0
    group = mesh.group if mesh else None
    build_seconds = time.perf_counter() - started

    with (
        contextlib.closing(training),
        feeding(source, plan, data_rank, worker.device) as feed,
        ConditionsSampler.running(worker.device) as sampler,
        worker.meter.enforced(),
    ):
        first_step_at = time.perf_counter()
        _worst_step(training, feed, watch)
        worker.meter.check()
        sampler.begin()
        objective = longer(spec) if request.proof else spec.objective
        series = measure_steps(training, feed, objective, group, watch, request.rival)
        steps_seconds = time.perf_counter() - first_step_at
        conditions = sampler.read()
        proof = None
        if request.proof and isinstance(series, Series):
            # made here and not by loader processes, which give each step once and in order
            worst = partial(source.step, plan, data_rank, WORST_STEP)
            proof = prove(training, worst, spec, group, watch)
        compiled = compile_seconds() if plan.compile else 0.0
        worker.meter.check()
        peak, states = worker.meter.peak(), training.state_bytes()
    if isinstance(series, Diverged):
        return series
    if isinstance(proof, Diverged):
        return replace(proof, step=len(series.losses) + proof.step)
    step = series.step_seconds
    per_token = flops.training_flops_per_token(spec)
    flops_per_step = per_token and per_token * series.tokens
    peak_flops = flops.peak_flops(worker.device, plan.precision, group)
    return Measured(
        samples_per_second=_per_second(plan.global_batch, series),
        tokens_per_second=series.tokens / step.value,
        step_seconds=step,
        phases=series.phases,
        mfu=_mfu(flops_per_step, step.value, plan.world_size, peak_flops),
        flops_per_step=flops_per_step,
        memory=_reading(worker, peak, states),
        conditions=conditions,
        warmup_steps=1 + sum(window.steps for window in series.windows[: series.warmup]),
        measured_steps=sum(window.steps for window in series.steady),
        losses=series.losses,
        seconds_by_step=tuple(float(f"{each:.4g}") for each in series.seconds_by_step),
        costs=Costs(
            build_seconds=build_seconds,
            steps_seconds=steps_seconds,
            total_seconds=0.0,  # known when the trial is over
            residual_bytes=0,
            compile_seconds=compiled,
        ),
        beaten=series.beaten,
        proof=proof,
    )


def _worst_step(training: AbstractTraining, feed: Feed, watch: AbstractStopwatch) -> None:
    """Trains on the longest samples there are, which a long run will meet."""
    with watch.during("data"):
        worst = feed(WORST_STEP)
    training.step(worst.batches, worst.targets, watch)
    watch.synchronize()


def train_once(spec: SweepSpec, worker: Worker) -> None:
    """One step of one sample of the spec's model, on this rank alone, without a limit."""
    facts = prepare(spec)
    plan = Plan(
        zero_stage=0,
        micro_batch=1,
        accumulation=1,
        checkpoint_ratio=0.0,
        attention=facts.attentions[0],
        precision=spec.train.precision,
        batching="padded",
        data=1,
    )
    model = build(spec.model, spec.train, attention=plan.attention)
    source = batch_source(model, spec)
    request = TrialRequest(number=-1, plan=plan, spec=spec)
    training = build_training(request, model, facts, None, worker.device)
    given = source.step(plan, 0, 0)
    with contextlib.closing(training):
        training.step(given.batches, given.targets, stopwatch_for(worker.device))


def _mfu(
    flops_per_step: float | None, seconds: float, ranks: int, peak: float | None
) -> float | None:
    """Share of the devices' peak that the model's own FLOPs reach; None if either is unknown."""
    if flops_per_step is None or not peak:
        return None
    return flops_per_step / seconds / (peak * ranks)


def _per_second(samples: int, series: Series) -> Estimate:
    seconds = series.step_seconds
    return Estimate(
        value=samples / seconds.value, low=samples / seconds.high, high=samples / seconds.low
    )


def _reading(worker: Worker, peak: Peak, states: StateBytes) -> MemoryReading:
    used = peak.reserved_bytes if peak.allocated_bytes is None else peak.allocated_bytes
    return MemoryReading(
        rank=worker.ranks.rank,
        limit_bytes=worker.meter.limit_bytes,
        peak_bytes=peak.held_bytes,
        reserved_bytes=peak.reserved_bytes,
        allocated_bytes=peak.allocated_bytes,
        anatomy=Anatomy(
            weights=states.weights,
            gradients=states.gradients,
            optimizer_states=states.optimizer_states,
            activations=max(used - states.total, 0),
            fragmentation=(
                None
                if peak.allocated_bytes is None
                else max(peak.reserved_bytes - peak.allocated_bytes, 0)
            ),
            outside=peak.outside_bytes,
        ),
    )
