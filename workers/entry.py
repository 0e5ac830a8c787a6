"""Entry point of a worker: every request ends in an outcome, whatever happens."""

import contextlib
import gc
import json
import os
import platform
import time
import traceback
from collections.abc import Collection
from dataclasses import replace

from search_spaces import trial
from search_spaces.hardware.device import BlockLaunches
from search_spaces.safety.redaction import secret_values, without_secrets
from search_spaces.specification.schema import SweepSpec
from workers.engines.build import load_engines
from workers.engines.stopwatch import Stopwatch
from workers.memory.oom import failed_allocation
from workers.outcomes import crash_cause, merge_outcomes
from workers.prepare import prepare
from workers.probe.block import cached_block_launches
from workers.tracing.model_work import count_work
from workers.trial import train_and_measure, train_one_step
from workers.worker import Worker, device_name

_DETAIL_CHARACTERS = 300


def run_trial(request: trial.TrialRequest, worker: Worker) -> trial.Outcome:
    """Runs one trial together with the other ranks of the worker group.

    Every rank calls it with the same request and gets the same outcome. Memory is released
    before it returns; the outcome states the residual.

    Raises:
        RuntimeError: If a rank is gone, so that the others cannot agree. The group must be
            replaced. Each rank has announced its own outcome by then.
    """
    started = time.perf_counter()
    with worker.group.watched():
        ending = _attempt(request, worker)
    if worker.group.was_woken and not isinstance(ending, trial.OutOfMemory):
        ending = _woken(ending, worker.ranks.rank)
    if not isinstance(ending, trial.Agreed):
        worker.announce(ending)  # an abort may wait for kernels that never end
        worker.group.abort()
    try:
        residual_bytes = worker.meter.close()
    except RuntimeError as error:  # a device in error refuses everything but new processes
        residual_bytes = worker.meter.limit_bytes  # nothing is known to have come back
        if not isinstance(ending, trial.Crashed):
            ending = _ending_of(error, "end", worker)
    ending = _with_costs(ending, time.perf_counter() - started, residual_bytes)
    worker.announce(ending)
    outcome = merge_outcomes(_exchanged(ending, worker))
    if not isinstance(outcome, trial.Agreed):
        worker.group.abort()  # a peer has dropped its own
    return outcome


def _exchanged(ending: trial.Outcome, worker: Worker) -> list[trial.Outcome]:
    texts = worker.ranks.gather(json.dumps(trial.outcome_to_json(ending)).encode())
    return [trial.outcome_from_json(json.loads(text)) for text in texts]


def _attempt(request: trial.TrialRequest, worker: Worker) -> trial.Outcome:
    watch = Stopwatch(worker.runtime)
    try:
        mesh = worker.group.acquire(request.collective_seconds, request.plan)
        return train_and_measure(request, worker, mesh, watch)
    except (Exception, SystemExit) as error:  # the one place: every ending is an outcome
        return _ending_of(error, watch.phase, worker)


def _woken(ending: trial.Outcome, rank: int) -> trial.Crashed:
    phase = ending.phase if isinstance(ending, trial.Crashed) else "end"
    detail = "another rank failed, which ended the collectives of this one"
    return trial.Crashed(cause="collective", rank=rank, phase=phase, detail=detail)


def warm_up(spec: SweepSpec, worker: Worker) -> None:
    """Trains one step of the spec's model on this rank alone and discards it.

    The first step loads libraries, starts threads and fills caches. They belong to the process
    and must not count towards the first plan. Errors are suppressed: the trial meets and
    reports them too. On CUDA no step is trained: there the libraries occupy device memory and
    rightly count, and the model may be too large for one rank.
    """
    with contextlib.suppress(Exception, SystemExit):
        prepare(spec)
        load_engines(spec, worker.device)
        count_work(spec)
        if worker.device.type == "cpu":
            train_one_step(spec, worker)
    gc.collect()
    gc.freeze()  # the libraries stay: traversing them would dominate each trial's collection
    worker.meter.open()


def measure_launches(spec: SweepSpec, worker: Worker) -> BlockLaunches | None:
    """Measures what the host takes to launch a block's operators; None if the model has no block.

    The result of an earlier start on this machine is used again.
    """
    hardware = {"device": device_name(worker.device), "host": platform.node()}
    with contextlib.suppress(Exception, SystemExit):
        return cached_block_launches(spec.model, spec.train, worker.device, hardware)
    return None


def _ending_of(error: BaseException, phase: str, worker: Worker) -> trial.Outcome:
    """Converts an exception to an outcome, which must not hold it: its frames hold the model.

    Libraries put passwords and tokens into their messages; the outcome repeats none.
    """
    secrets = secret_values(os.environ)
    limit_bytes = worker.meter.limit_bytes
    try:
        held_bytes, nearly_full = worker.meter.bytes_in_use(), worker.meter.nearly_full()
    except RuntimeError:  # a device in error does not even tell what it holds
        held_bytes, nearly_full = None, False
    if wanted := failed_allocation(error, worker.device, nearly_full=nearly_full):
        on_device, total = wanted.where == "device", wanted.total_bytes
        if wanted.asked_bytes is not None and held_bytes is not None:
            total = max(held_bytes + wanted.asked_bytes, limit_bytes + 1)
        return trial.OutOfMemory(
            where=wanted.where,
            wanted_bytes=total if on_device else None,
            limit_bytes=limit_bytes if on_device else None,
            rank=worker.ranks.rank,
            phase=phase,
            detail=_detail(error, secrets),
            costs=None,
        )
    return trial.Crashed(
        cause=crash_cause(error, phase),
        rank=worker.ranks.rank,
        phase=phase,
        detail=_detail(error, secrets),
        trace=without_secrets("".join(traceback.format_exception(error)), values=secrets),
    )


def _detail(error: BaseException, secrets: Collection[str]) -> str:
    first_line = next(iter(str(error).strip().splitlines()), "")
    said = without_secrets(f"{type(error).__name__}: {first_line}", values=secrets)
    return said[:_DETAIL_CHARACTERS]  # not before: half a secret is not recognized


def _with_costs(ending: trial.Outcome, total_seconds: float, residual_bytes: int) -> trial.Outcome:
    if not isinstance(ending, trial.Agreed | trial.OutOfMemory | trial.Crashed):
        return ending
    costs = ending.costs or trial.Costs(total_seconds=0.0, residual_bytes=0)
    costs = replace(costs, total_seconds=total_seconds, residual_bytes=residual_bytes)
    return replace(ending, costs=costs)
