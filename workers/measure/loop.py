"""Whole optimizer steps, timed between barriers until their median is known well enough.

Well enough is less where a rival, the best plan so far, is faster beyond doubt, and more where the
two are close.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch.distributed as dist

from search_spaces.spec.sections import ObjectiveSpec
from search_spaces.trial import Diverged, Estimate, Phases
from workers.data.batches import StepBatches
from workers.engines.base import AbstractTraining
from workers.measure.steady import median_estimate, warmup_length
from workers.measure.stopwatch import PHASES, AbstractStopwatch
from workers.parallel.compile import compile_seconds
from workers.process_groups import total

# Shorter steps are timed several at once, so that the barriers do not count for much.
MIN_WINDOW_SECONDS = 0.1
STOP = 0
BEATEN = -1  # stop, since the rival is faster
# Windows after which an interval that lies on one side of the rival's settles it (five on the same
# side of a median by chance: 3 %), or one that is so much slower
_SETTLED, _EARLY, _FAR = 5, 3, 1.25
_TIE = 0.5  # of the wanted interval, where it overlaps the rival's


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Some steps that were timed together; seconds are per step."""

    steps: int
    seconds: float
    phases: tuple[float, ...]  # in the order of PHASES
    tokens: float  # per step, all ranks
    compile_seconds: float  # of all its steps and ranks together


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """All that was timed: the first `warmup` windows do not count.

    Windows in which something was compiled stand in front, whenever they were; `losses` and
    `seconds_by_step` are in the order of the steps. `beaten` says that it ended because the rival
    was faster.
    """

    windows: tuple[Window, ...]
    losses: tuple[float, ...]
    seconds_by_step: tuple[float, ...]
    warmup: int
    beaten: bool = False

    @property
    def steady(self) -> tuple[Window, ...]:
        """The windows that count."""
        return self.windows[self.warmup :]

    @property
    def step_seconds(self) -> Estimate:
        """Median seconds of a step."""
        return median_estimate([window.seconds for window in self.steady])

    @property
    def phases(self) -> Phases:
        """Median seconds of a step by phase."""
        columns = zip(*(window.phases for window in self.steady), strict=True)
        medians = [statistics.median(column) for column in columns]
        return Phases(**dict(zip(PHASES, medians, strict=True)))

    @property
    def tokens(self) -> float:
        """Mean tokens of a step, all ranks."""
        return statistics.fmean(window.tokens for window in self.steady)


def measure_steps(
    training: AbstractTraining,
    feed: Callable[[int], StepBatches],
    objective: ObjectiveSpec,
    group: dist.ProcessGroup | None,
    watch: AbstractStopwatch,
    incumbent: Estimate | None = None,
) -> Series | Diverged:
    """Runs steps 0, 1, 2, ... until the objective's precision or one of its caps is reached.

    All ranks run the same steps: rank 0 decides from its clock, the others are told.

    Args:
        training: The model and its optimizer.
        feed: Gives this rank's input of a step; its time counts as data.
        objective: How exactly to measure, and for how long at most.
        group: The ranks that train together, None if there is one.
        watch: Told which phase is under way; its clock times the windows.
        incumbent: Seconds of a step of the best plan so far, None if there is none to beat.
    """
    windows: list[Window] = []
    losses: list[float] = []
    lead = group is None or dist.get_rank(group) == 0
    steps = 1
    while steps > STOP:
        window, parts = _timed(training, feed, len(losses), steps, group, watch)
        windows.append(window)
        wanted = _next_steps(windows, objective, incumbent) if lead else STOP
        steps_told, *summed = total([float(wanted), *parts], group, training.device)
        losses.extend(summed)
        for step, loss in enumerate(summed, start=len(losses) - len(summed)):
            if not math.isfinite(loss):
                return Diverged(step=step, loss="nan" if math.isnan(loss) else "inf", costs=None)
        steps = int(steps_told)
    compiling, calm = _apart(windows)
    warmup = len(compiling) + warmup_length([window.seconds for window in calm])
    return Series(
        windows=(*compiling, *calm),
        losses=tuple(losses),
        seconds_by_step=tuple(w.seconds for w in windows for _ in range(w.steps)),
        warmup=warmup,
        beaten=steps == BEATEN,
    )


def _timed(
    training: AbstractTraining,
    feed: Callable[[int], StepBatches],
    first: int,
    steps: int,
    group: dist.ProcessGroup | None,
    watch: AbstractStopwatch,
) -> tuple[Window, list[float]]:
    """Times so many steps from step `first` on; also returns this rank's parts of the losses."""
    parts, tokens = [], 0
    _meet(group, watch)
    watch.read()
    compiled = compile_seconds()
    started = watch.clock()
    for step in range(first, first + steps):
        with watch.during("data"):
            given = feed(step)
        parts.append(training.step(given.batches, given.targets, watch))
        tokens += given.tokens
    _meet(group, watch)
    seconds = (watch.clock() - started) / steps
    spent = watch.read()
    window = Window(
        steps=steps,
        seconds=seconds,
        phases=tuple(spent[phase] / steps for phase in PHASES),
        tokens=tokens / steps,
        compile_seconds=total([compile_seconds() - compiled], group, training.device)[0],
    )
    return window, [part.item() for part in parts]


def _meet(group: dist.ProcessGroup | None, watch: AbstractStopwatch) -> None:
    """Waits for the device, then for the other ranks."""
    watch.synchronize()
    if group is not None:
        dist.barrier(group=group)


def _next_steps(
    windows: Sequence[Window], objective: ObjectiveSpec, incumbent: Estimate | None
) -> int:
    """How many steps the next window takes, or STOP, or BEATEN."""
    compiling, calm = _apart(windows)
    seconds = [window.seconds for window in calm or compiling]
    done = sum(window.steps for window in windows)
    spent = sum(window.seconds * window.steps for window in calm)
    steady = seconds[warmup_length(seconds) :]
    if incumbent is not None and calm and _is_beaten(steady, incumbent):
        return BEATEN
    if len(steady) >= objective.min_steps:
        known = median_estimate(steady)
        tie = incumbent is not None and known.overlaps(incumbent)
        if known.relative_half_width <= objective.interval * (_TIE if tie else 1.0):
            return STOP
        if spent >= objective.max_seconds:
            return STOP
    # a plan too slow for min_steps within max_seconds still gets a second look
    if done >= objective.max_steps or (spent >= objective.max_seconds and len(seconds) > 1):
        return STOP
    wanted = math.ceil(MIN_WINDOW_SECONDS / statistics.median(steady))
    return max(1, min(wanted, objective.max_steps - done))


def _is_beaten(steady: Sequence[float], incumbent: Estimate) -> bool:
    fastest = min(steady)
    if len(steady) >= _SETTLED and median_estimate(steady).low > incumbent.high:
        return True
    return len(steady) >= _EARLY and fastest > _FAR * incumbent.high


def _apart(windows: Sequence[Window]) -> tuple[list[Window], list[Window]]:
    """The windows in which something was compiled, on whichever rank, and the others."""
    compiling = [window for window in windows if window.compile_seconds > 0]
    return compiling, [window for window in windows if window.compile_seconds == 0]
