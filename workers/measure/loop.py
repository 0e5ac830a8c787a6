"""Times whole optimizer steps between barriers, until their mean is precise enough.

Measuring ends early if the incumbent (the best plan so far) is clearly faster.
"""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch.distributed as dist

from search_spaces.hardware.noise import Noise, noise_prior
from search_spaces.specification.sections import ObjectiveSpec
from search_spaces.trial import Diverged, Estimate, Phases
from workers.data.batches import StepBatches
from workers.engines.base import AbstractTraining
from workers.engines.stopwatch import PHASES, Stopwatch
from workers.measure.interval import is_precise, mean_estimate, stall_seconds
from workers.measure.steady import warmup_length
from workers.memory.nvml import joules_used
from workers.parallel.compile import compile_seconds
from workers.process_groups import sum_over_ranks

# Several short steps share one window, so that what happens at its ends adds little to the time:
# barriers and, on a GPU, the wait for an empty queue and its refilling, a few ms in each window,
# which a training that never waits does not have.
MIN_WINDOW_SECONDS = {"cpu": 0.1, "cuda": 1.0, "tpu": 1.0}
STOP = 0
BEATEN = -1  # stop, since the incumbent is faster
# Windows after which the plan is beaten if its interval lies above the incumbent's, and windows
# after which it is beaten if every step took longer than the incumbent's by this factor
_MIN_WINDOWS, _EARLY_WINDOWS, _EARLY_FACTOR = 5, 3, 1.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Steps that were timed together; seconds are per step.

    `allocator_retries` are those of all ranks in its steps.
    """

    steps: int
    seconds: float
    phases: tuple[float, ...]  # in the order of PHASES
    tokens: float  # per step, all ranks
    compile_seconds: float  # sum over its steps and all ranks
    allocator_retries: int = 0
    excess: float = 0.0  # tokens per step beyond those of a mean step
    joules: float = math.nan  # of all ranks in its steps; NaN if a device does not count them


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """All timed windows; the first `warmup` windows do not count.

    Windows with compilation come first, whenever they ran. `losses` and `seconds_by_step` are in
    the order of the steps. `beaten` is set if measuring ended because the incumbent is faster.
    `noise` is what was known of the device before.
    """

    windows: tuple[Window, ...]
    losses: tuple[float, ...]
    seconds_by_step: tuple[float, ...]
    warmup: int
    noise: Noise
    beaten: bool = False

    @property
    def steady(self) -> tuple[Window, ...]:
        """The windows that count."""
        return self.windows[self.warmup :]

    @property
    def step_seconds(self) -> Estimate:
        """Mean seconds of a step: what a long run gets, stalls included."""
        return _mean_estimate(self.steady, self.noise)

    @property
    def stall_seconds(self) -> float:
        """Seconds of the steps that count which were lost to stalls."""
        return stall_seconds(*_columns(self.steady))

    @property
    def allocator_retries(self) -> int:
        """Retries of the allocators of all ranks in the steps that count."""
        return sum(window.allocator_retries for window in self.steady)

    @property
    def phases(self) -> Phases:
        """Median seconds of a step by phase."""
        columns = zip(*(window.phases for window in self.steady), strict=True)
        medians = [statistics.median(column) for column in columns]
        return Phases(**dict(zip(PHASES, medians, strict=True)))

    @property
    def tokens(self) -> float:
        """Mean tokens of a step, all ranks."""
        steps = [window.steps for window in self.steady]
        return statistics.fmean((window.tokens for window in self.steady), steps)

    @property
    def joules_per_token(self) -> float | None:
        """Energy of the steps that count over their tokens; None if unknown."""
        joules = sum(window.joules for window in self.steady)
        tokens = sum(window.tokens * window.steps for window in self.steady)
        return joules / tokens if joules > 0 and tokens else None


def measure_steps(
    training: AbstractTraining,
    feed: Callable[[int], StepBatches],
    objective: ObjectiveSpec,
    group: dist.ProcessGroup | None,
    watch: Stopwatch,
    incumbent: Estimate | None = None,
    floor_seconds: float = 0.0,
    allocator_retries: Callable[[], int] = lambda: 0,
    noise: Noise | None = None,
    watch_steps: Callable[[int, Callable[[], Estimate | None]], None] = lambda *_: None,
) -> Series | Diverged:
    """Runs the same steps on all ranks until the objective's precision or a cap is reached.

    Rank 0 decides by its clock and tells the others.

    Args:
        training: The model and its optimizer.
        feed: Returns this rank's input of a step; its time counts as data.
        objective: The target precision and the caps.
        group: The ranks that train together, None for a single rank.
        watch: Records the current phase; its clock times the windows.
        incumbent: Seconds per step of the best plan so far, None if there is none.
        floor_seconds: Seconds of steps to measure even if fewer are precise; caps end it anyway.
        allocator_retries: Counts the retries of this rank's allocator so far.
        noise: What is known of the device; None if nothing is.
        watch_steps: Called by rank 0 with the steps so far and an estimator of their seconds.

    Returns:
        The series, or `Diverged` if a loss is not finite.
    """
    windows, losses = list[Window](), list[float]()
    lead = group is None or dist.get_rank(group) == 0
    noise = noise or noise_prior(training.device.type)
    steps, window_seconds = 1, MIN_WINDOW_SECONDS[training.device.type]
    while steps > STOP:
        window, parts = _timed(training, feed, len(losses), steps, group, watch, allocator_retries)
        windows.append(window)
        # summed over ranks, with zeros from all but rank 0
        decision = STOP
        if lead:
            watch_steps(len(losses) + steps, partial(_estimate_so_far, windows, noise))
            caps = incumbent, floor_seconds, window_seconds
            decision = next_window(windows, objective, *caps, noise)
        next_steps, *summed = sum_over_ranks([float(decision), *parts], group, training.device)
        losses.extend(summed)
        for step, loss in enumerate(summed, start=len(losses) - len(summed)):
            if not math.isfinite(loss):
                return Diverged(step=step, loss="nan" if math.isnan(loss) else "inf", costs=None)
        steps = int(next_steps)
    compiling, regular = _split_by_compilation(windows)
    warmup = len(compiling) + warmup_length([window.seconds for window in regular])
    return Series(
        windows=(*compiling, *regular),
        losses=tuple(losses),
        seconds_by_step=tuple(w.seconds for w in windows for _ in range(w.steps)),
        warmup=warmup,
        noise=noise,
        beaten=steps == BEATEN,
    )


def _timed(
    training: AbstractTraining,
    feed: Callable[[int], StepBatches],
    first: int,
    steps: int,
    group: dist.ProcessGroup | None,
    watch: Stopwatch,
    allocator_retries: Callable[[], int],
) -> tuple[Window, list[float]]:
    """Times `steps` steps from step `first`; also returns this rank's parts of the losses."""
    parts, tokens, excess = [], 0, 0.0
    joules = joules_used(training.device)  # ahead of the barrier: ranks then start together
    synchronize_ranks(group, watch)
    watch.read()
    compiled, retried = compile_seconds(), allocator_retries()
    started = watch.clock()
    for step in range(first, first + steps):
        with watch.during("data"):
            samples = feed(step)
        parts.append(training.step(samples.batches, samples.targets, watch))
        tokens += samples.tokens
        excess += samples.excess
    synchronize_ranks(group, watch)
    seconds = (watch.clock() - started) / steps
    spent = watch.read()
    joules = joules_used(training.device) - joules
    own = [compile_seconds() - compiled, float(allocator_retries() - retried), joules]
    compiling, retries, joules = sum_over_ranks(own, group, training.device)
    window = Window(
        steps=steps,
        seconds=seconds,
        phases=tuple(spent[phase] / steps for phase in PHASES),
        tokens=tokens / steps,
        compile_seconds=compiling,
        allocator_retries=round(retries),
        excess=excess / steps,
        joules=joules,
    )
    return window, [part.item() for part in parts]


def synchronize_ranks(group: dist.ProcessGroup | None, watch: Stopwatch) -> None:
    """Waits for the device, then for the other ranks."""
    watch.synchronize()
    if group is not None:
        dist.barrier(group=group)


def next_window(
    windows: Sequence[Window],
    objective: ObjectiveSpec,
    incumbent: Estimate | None,
    floor_seconds: float,
    window_seconds: float,
    noise: Noise,
) -> int:
    """Returns the number of steps of the next window, or STOP, or BEATEN."""
    compiling, regular = _split_by_compilation(windows)
    timed = regular or compiling
    done = sum(window.steps for window in windows)
    spent = sum(window.seconds * window.steps for window in regular)
    steady = timed[warmup_length([window.seconds for window in timed]) :]
    if incumbent is not None and regular and _is_beaten(steady, incumbent, noise):
        return BEATEN
    enough = len(steady) >= objective.min_steps and spent >= floor_seconds
    seconds, steps, excess = (np.asarray(column, float) for column in _columns(steady))
    if enough and is_precise(seconds, steps, objective.interval, noise, excess):
        return STOP
    # a plan too slow for min_steps within max_seconds still gets a second window
    if done >= objective.max_steps or (spent >= objective.max_seconds and len(timed) > 1):
        return STOP
    typical = statistics.median(window.seconds for window in steady)
    return max(1, min(math.ceil(window_seconds / typical), objective.max_steps - done))


def _estimate_so_far(windows: Sequence[Window], noise: Noise) -> Estimate | None:
    _, regular = _split_by_compilation(windows)
    steady = regular[warmup_length([window.seconds for window in regular]) :] if regular else ()
    return _mean_estimate(steady, noise) if len(steady) > 1 else None


def _is_beaten(steady: Sequence[Window], incumbent: Estimate, noise: Noise) -> bool:
    fastest = min(window.seconds for window in steady)
    if len(steady) >= _MIN_WINDOWS and _mean_estimate(steady, noise).low > incumbent.high:
        return True
    return len(steady) >= _EARLY_WINDOWS and fastest > _EARLY_FACTOR * incumbent.high


def _mean_estimate(windows: Sequence[Window], noise: Noise) -> Estimate:
    return mean_estimate(*_columns(windows), noise)


def _columns(windows: Sequence[Window]) -> tuple[list[float], list[int], list[float]]:
    return (
        [window.seconds for window in windows],
        [window.steps for window in windows],
        [window.excess for window in windows],
    )


def _split_by_compilation(windows: Sequence[Window]) -> tuple[list[Window], list[Window]]:
    compiling = [window for window in windows if window.compile_seconds > 0]
    return compiling, [window for window in windows if window.compile_seconds == 0]
