"""What a proof does beside a trial: the longest samples again, an evaluation, a checkpoint.

All of it is within the memory limit, behind the measured steps. A trial's one step on the longest
samples is its first, before the optimizer has any states; a long run meets such a step with the
states beside it, and in memory that thousands of others have cut up.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from search_spaces.outcome import Diverged, ProofRun
from search_spaces.spec.objective_section import ObjectiveSpec
from search_spaces.spec.schema import SweepSpec
from workers.checkpoints import bytes_in, checkpoint_folder
from workers.data import StepBatches
from workers.engines import AbstractTraining
from workers.measure.stopwatch import AbstractStopwatch
from workers.ranks import total

AGAIN = 2  # steps on the longest samples before the evaluation; one more comes last
CLOSER = 0.5  # of the interval to which a trial measures


def longer(spec: SweepSpec) -> ObjectiveSpec:
    """How long a proof measures, and how exactly."""
    objective, times = spec.objective, spec.proof.longer
    return objective.model_copy(
        update={
            "min_steps": math.ceil(objective.min_steps * times),
            "max_steps": math.ceil(objective.max_steps * times),
            "max_seconds": objective.max_seconds * times,
            "interval": objective.interval * CLOSER,
        }
    )


def prove(
    training: AbstractTraining,
    worst: Callable[[], StepBatches],
    spec: SweepSpec,
    group: dist.ProcessGroup | None,
    watch: AbstractStopwatch,
) -> ProofRun | Diverged:
    """Trains on the longest samples, evaluates, saves, and trains on them once more.

    Args:
        training: The model and its optimizer, after the measured steps.
        worst: Gives this rank's longest samples.
        spec: Says where a checkpoint may lie.
        group: The ranks that train together, None if there is one.
        watch: Told which phase is under way.

    Returns:
        What was done, or that a loss was no number; its step counts from the first one here.

    Raises:
        OSError: If a checkpoint cannot be written.
    """
    before = _random_states(training.device)
    parts = [_train(training, worst, watch) for _ in range(AGAIN)]
    draws = not all(map(torch.equal, before, _random_states(training.device)))
    evaluated, evaluation_seconds = _evaluate(training, worst, group, watch)
    size, checkpoint_seconds = _save(training, spec, group, watch)
    parts.append(_train(training, worst, watch))
    watch.synchronize()
    silent = evaluated is None  # on all ranks: they have one model
    told = [*parts, torch.zeros(()) if evaluated is None else evaluated]
    drawing, bytes_in_all, *losses = total(
        [float(draws), float(size), *(part.item() for part in told)], group, training.device
    )
    for step, loss in enumerate(losses):
        if not math.isfinite(loss):
            return Diverged(step=step, loss="nan" if math.isnan(loss) else "inf", costs=None)
    return ProofRun(
        worst_steps=1 + len(parts),  # and that with which every trial begins
        evaluation_seconds=evaluation_seconds,
        evaluation_loss=None if silent else losses[-1],
        checkpoint_seconds=checkpoint_seconds,
        checkpoint_bytes=int(bytes_in_all),
        draws=drawing > 0,
    )


def _train(
    training: AbstractTraining, worst: Callable[[], StepBatches], watch: AbstractStopwatch
) -> torch.Tensor:
    with watch.during("data"):
        given = worst()
    return training.step(given.batches, given.targets, watch)


def _evaluate(
    training: AbstractTraining,
    worst: Callable[[], StepBatches],
    group: dist.ProcessGroup | None,
    watch: AbstractStopwatch,
) -> tuple[torch.Tensor | None, float]:
    """This rank's part of the loss, and the seconds that it took all ranks."""
    given = worst()
    _meet(group, watch)
    watch.phase, started = "evaluation", time.perf_counter()
    loss = training.evaluate(given.batches, given.targets)
    _meet(group, watch)
    return loss, time.perf_counter() - started


def _save(
    training: AbstractTraining,
    spec: SweepSpec,
    group: dist.ProcessGroup | None,
    watch: AbstractStopwatch,
) -> tuple[int, float]:
    """The bytes that this rank wrote, and the seconds that it took all ranks."""
    watch.phase, started = "checkpoint", time.perf_counter()
    with checkpoint_folder(spec) as folder:
        training.save(folder)
        size = bytes_in(folder)
        _meet(group, watch)
        seconds = time.perf_counter() - started
    return size, seconds


def _meet(group: dist.ProcessGroup | None, watch: AbstractStopwatch) -> None:
    """Waits for the device, then for the other ranks."""
    watch.synchronize()
    if group is not None:
        dist.barrier(group=group)


def _random_states(device: torch.device) -> list[torch.Tensor]:
    """Where the generators stand from which dropout draws."""
    states = [torch.get_rng_state()]
    if device.type == "cuda":
        states.append(torch.cuda.get_rng_state(device))
    return states
