"""The strategy of DeepSpeed's autotuner: stage by stage with a memory estimate, then micro-batches.

What it does of its own: it profiles the model once, at ZeRO-3 and the smallest micro-batch. Of each
stage, from the lowest, it asks how much memory the states take by a formula and how large a
micro-batch the rest holds by the profile; where that is no larger than what the stage before ran,
the stage is passed over. It measures the smallest and the largest micro-batch, searches by halves
where the largest does not run, until 5 % more is not to be had, and then up to three between the
half of the largest and the largest. The best stage's other settings it tries as a grid, until
five in a row bring nothing.

Here: a micro-batch that is not offered is the next smaller one that is. All that the autotuner
does not tune has one setting, as a user's configuration has, drawn at random; the other settings
are the grid. Without a peak, a limit or parameters in the table the estimate allows everything.
On a surface without stage there is one stage, and without micro-batch each stage is one trial.

Source: `deepspeed/autotuning/autotuner.py` of DeepSpeed 0.19.8 (`tune`, `tune_space`,
    `get_min_max_micro_batch_size`, `get_tuning_micro_batch_size_list`,
    `run_tuning_micro_batch_sizes`, `get_instantiation_memory_required_per_gpu`);
    `tuner/base_tuner.py` for the grid.
"""

import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.search.competitors.base import Strategy
from benchmarks.search.competitors.layout import Layout, Setting
from benchmarks.search.surfaces import Setup, Surface, Trial

GIB = 2**30
PLATEAU = 0.05  # METRIC_PERCENT_DIFF_CONST
TUNED_SIZES = 3  # AUTOTUNING_NUM_TUNING_MICRO_BATCH_SIZES_DEFAULT
EARLY_STOPPING = 5  # AUTOTUNING_TUNER_EARLY_STOPPING_DEFAULT
MOST_TRIALS = 50  # AUTOTUNING_TUNER_NUM_TRIALS_DEFAULT
Rows = Mapping[float, int]  # candidates by their micro-batch, from the smallest


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """The autotuner's estimate; `activation_gib` is of a micro-batch of 1, None if unknown."""

    setup: Setup
    activation_gib: float | None

    def largest(self, stage: int) -> float:
        """The largest micro-batch that a stage is thought to hold."""
        if self.activation_gib is None or self.setup.limit_gib is None:
            return math.inf
        left = self.setup.limit_gib - instantiation_gib(self.setup, stage)
        return left // self.activation_gib if left > self.activation_gib else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """The result of a stage: its largest micro-batch, the best one, and those worth trying."""

    stage: int = 0
    largest: float = 0.0
    micro: float = 0.0
    rate: float = 0.0
    sizes: tuple[float, ...] = ()


def instantiation_gib(setup: Setup, stage: int) -> float:
    """Weights, gradients and Adam's states of a rank, as the autotuner counts them."""
    if not setup.parameters:
        return 0.0
    half = "fp16" in setup.precision
    ranks = setup.gpus or 1.0
    weights, gradients, optimizer = (2, 2, 16) if half else (4, 4, 8)
    each = (
        weights / (ranks if stage >= 3 else 1)
        + gradients / (ranks if stage >= 2 else 1)
        + optimizer / (ranks if stage >= 1 else 1)
    )
    return setup.parameters * each / GIB


def autotuner(surface: Surface, random: np.random.Generator) -> Strategy:
    """The strategy on a surface; it ends where the autotuner would."""
    layout = Layout.of(surface)
    base = layout.settings[int(random.integers(len(layout.settings)))]
    best = yield from _stages(surface.setup, layout, base)
    if best is not None:
        yield from _others(layout, base, best)


def _stages(setup: Setup, layout: Layout, base: Setting) -> Generator[int, Trial, Tuned | None]:
    """All stages of one setting; None if not even the profile runs."""
    stages = layout.stages(base)
    profiled = layout.rows(base, stages[-1])
    smallest = next(iter(profiled))
    trial = yield profiled[smallest]
    if trial.rate is None:
        return None
    memory = Memory(setup=setup, activation_gib=_activation(setup, stages[-1], smallest, trial))
    best, before = None, Tuned()
    for stage in stages:
        rows = layout.rows(base, stage)
        largest = min(memory.largest(stage), max(rows))
        if largest < max(before.largest, min(rows)):
            continue
        tuned = yield from _stage(rows, stage, largest, before)
        if tuned is None:
            continue
        if best is None or tuned.rate > best.rate:
            best = tuned
        if tuned.micro > before.micro:
            before = tuned
    return best


def _activation(setup: Setup, stage: int, micro: float, trial: Trial) -> float | None:
    """Returns what a micro-batch of 1 holds: the profile's peak less what its states take."""
    if trial.log_share is None or setup.limit_gib is None:
        return None
    peak = setup.limit_gib * math.exp(trial.log_share)
    left = (peak - instantiation_gib(setup, stage)) / max(micro, 1.0)
    return left if left > 0 else None


def _stage(
    rows: Rows, stage: int, largest: float, before: Tuned
) -> Generator[int, Trial, Tuned | None]:
    """One stage; None if nothing larger than before runs in it."""
    rates: dict[float, float] = {}
    bounds = yield from _bounds(rows, largest, before.largest, rates)
    if bounds is None or bounds[1] < before.largest:
        return None
    sizes = _sizes(rows, *bounds)
    for micro in sizes:
        yield from _run(rows, micro, rates)
    yield from _between(rows, sizes, bounds[0], rates)
    ran = {micro: rate for micro, rate in rates.items() if rate}
    best = max(ran, key=lambda micro: ran[micro])
    return Tuned(stage=stage, largest=bounds[1], micro=best, rate=ran[best], sizes=sizes)


def _run(rows: Rows, micro: float, rates: dict[float, float]) -> Generator[int, Trial, float]:
    """The throughput of a micro-batch, which is kept; 0 if it did not run."""
    trial = yield rows[micro]
    rates[micro] = trial.rate or 0.0
    return rates[micro]


def _bounds(
    rows: Rows, largest: float, before: float, rates: dict[float, float]
) -> Generator[int, Trial, tuple[float, float] | None]:
    """The smallest and the largest micro-batch that run; None if the smallest does not."""
    smallest = _at_most(rows, before) if before else min(rows)
    if smallest is None or not (yield from _run(rows, smallest, rates)):
        return None
    for wanted in (math.ceil(1.05 * largest), largest, math.floor(0.95 * largest)):
        micro = _at_most(rows, wanted) if wanted <= max(rows) else None
        if micro is None or rates.get(micro) == 0.0:
            continue
        if rates.get(micro) or (yield from _run(rows, micro, rates)):
            return smallest, micro
    halved = yield from _halved(rows, smallest, largest, rates)
    return smallest, halved


def _halved(
    rows: Rows, smallest: float, largest: float, rates: dict[float, float]
) -> Generator[int, Trial, float]:
    """The largest micro-batch that runs, or from which on more is hardly faster."""
    sizes = [micro for micro in rows if smallest <= micro <= largest]
    low, high, previous = 0, len(sizes) - 1, rates[smallest]
    while low <= high:
        middle = (low + high) // 2
        if rates.get(sizes[middle]):
            low = middle + 1
            continue
        rate = yield from _run(rows, sizes[middle], rates)
        if not rate:
            high = middle - 1
            continue
        low = middle + 1
        if (rate - previous) / previous < PLATEAU:
            break
        previous = rate
    return sizes[max(low - 1, 0)]


def _sizes(rows: Rows, smallest: float, largest: float) -> tuple[float, ...]:
    """The micro-batches to tune: up to three from the half of the largest on, and the largest."""
    least = int(max(smallest, largest // 2))
    stride = max((int(largest) - least) // TUNED_SIZES, 1)
    wanted = (_at_most(rows, size) for size in range(least, int(largest), stride))
    return (*sorted({s for s in wanted if s is not None and least <= s < largest}), largest)


def _between(
    rows: Rows, sizes: Sequence[float], smallest: float, rates: dict[float, float]
) -> Strategy:
    """Somewhat smaller than the largest, as long as each is 5 % faster: less memory is in use."""
    above = sizes[-2] if len(sizes) > 1 else smallest
    best = rates[sizes[-1]]
    for micro in sorted((micro for micro in rows if above < micro < sizes[-1]), reverse=True):
        rate = yield from _run(rows, micro, rates)
        if rate <= best * (1 + PLATEAU):
            return
        best = rate


def _others(layout: Layout, base: Setting, best: Tuned) -> Strategy:
    """The other settings of the best stage, as a grid, until several in a row bring nothing."""
    highest, since, trials = best.rate, 0, 0
    for setting in sorted(layout.settings, key=str):
        rows = layout.rows(setting, best.stage) if setting != base else {}
        for micro in (size for size in best.sizes if size in rows):
            trial = yield rows[micro]
            trials, since = trials + 1, since + 1
            if (trial.rate or 0.0) > highest:
                highest, since = trial.rate or 0.0, 0
            if since >= EARLY_STOPPING or trials >= MOST_TRIALS:
                return


def _at_most(rows: Rows, wanted: float) -> float | None:
    """The largest micro-batch on offer that is no larger."""
    return max((micro for micro in rows if micro <= wanted), default=None)
