"""The forecast of many plans at once: time and memory, each with how sure it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from search_spaces.costs.calibration import SURE, Calibration, probability_below
from search_spaces.costs.columns import PASSES
from search_spaces.costs.memory import CATEGORIES, STAGES, peak_bytes
from search_spaces.costs.plan_features import STACKS, Counts, Numbers
from search_spaces.costs.time import TERMS, step_terms
from search_spaces.costs.workload import Work

_THREADS = 2  # more would wait for memory
_CHUNK = 1 << 16  # plans at a time: fewer pay for calls, more for memory
_LEAST = 1e-30


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Forecasts:
    """Columns, a row for each plan.

    Deviations are those of logarithms: a value times exp(±1.96 deviations) is its interval of
    95 %. `terms` are seconds of a step, of shape (plans, TERMS); `categories` bytes of the fullest
    rank at its peak, of shape (plans, CATEGORIES). `fits` is the probability that the peak stays
    below the limit that was asked for.
    """

    step_seconds: Numbers
    step_deviation: Numbers
    samples_per_second: Numbers
    tokens_per_second_per_device: Numbers
    mfu: Numbers  # model FLOPs, without those of recomputation, over the devices' peak
    terms: Numbers
    recomputed: Numbers  # share of the computing terms that recomputation takes
    hidden_seconds: Numbers  # of communication behind computing
    peak_bytes: Numbers
    peak_deviation: Numbers
    categories: Numbers
    stage: Counts
    fits: Numbers

    def __len__(self) -> int:
        return len(self.step_seconds)

    def take(self, rows: NDArray[Any]) -> Self:
        """The forecasts of these rows."""
        return type(self)(**{f.name: getattr(self, f.name)[rows] for f in fields(self)})

    def interval(self, row: int) -> tuple[float, float]:
        """Samples per second of a plan, low and high, with 95 % confidence."""
        rate = float(self.samples_per_second[row])
        factor = float(np.exp(SURE * self.step_deviation[row]))
        return rate / factor, rate * factor

    def by_term(self, row: int) -> dict[str, float]:
        """Seconds of a step of one plan, by term."""
        return dict(zip(TERMS, self.terms[row].tolist(), strict=True))

    def by_category(self, row: int) -> dict[str, float]:
        """Bytes of the fullest rank of one plan, by category."""
        return dict(zip(CATEGORIES, self.categories[row].tolist(), strict=True))

    def fullest_stage(self, row: int) -> str:
        """Which rank of a pipeline holds most: "first", "middle" or "last"."""
        return STAGES[int(self.stage[row])]

    def limited_by(self, row: int) -> str:
        """The term that takes most of a plan's step."""
        return TERMS[int(np.argmax(self.terms[row]))]


def forecast(work: Work, belief: Calibration, limit_bytes: float) -> Forecasts:
    """What plans are expected to take.

    Args:
        work: The plans.
        belief: Coefficients and scales.
        limit_bytes: What one rank may hold.
    """
    # numpy computes without the interpreter's lock
    with ThreadPoolExecutor(max_workers=_THREADS) as threads:
        told = threads.map(lambda part: _forecast(part, belief, limit_bytes), _chunks(work))
        chunks = list(told)
    return Forecasts(
        **{f.name: np.concatenate([getattr(c, f.name) for c in chunks]) for f in fields(Forecasts)}
    )


def _chunks(work: Work) -> Iterator[Work]:
    if len(work) <= _CHUNK:
        yield work
        return
    for start in range(0, len(work), _CHUNK):
        yield work.take(slice(start, start + _CHUNK))  # type: ignore[arg-type]


def _forecast(work: Work, belief: Calibration, limit_bytes: float) -> Forecasts:
    step = step_terms(work, belief.time)
    terms = belief.time_scales.scaled(step.seconds)
    seconds = terms.sum(axis=1)
    peak = peak_bytes(work, belief.memory)
    categories = belief.memory_scales.scaled(peak.bytes)
    held = categories.sum(axis=1)
    execution, rows = work.executions, work.rows
    own = execution.stack == STACKS.index("torch")
    sureness = np.where(own, belief.own_sureness, belief.memory_scales.sureness)
    spread = belief.memory_scales.deviation(peak.bytes, sureness)
    samples = (execution.micro_batch * execution.accumulation * execution.data).astype(float)
    devices = (execution.tensor * execution.pipeline * execution.data).astype(float)
    rate = samples / seconds
    return Forecasts(
        step_seconds=seconds,
        step_deviation=belief.time_scales.deviation(step.seconds),
        samples_per_second=rate,
        tokens_per_second_per_device=rate * rows.tokens / devices,
        mfu=model_flops(work) / (seconds * rows.peak_flops * devices),
        terms=terms,
        recomputed=step.recomputed,
        hidden_seconds=step.hidden,
        peak_bytes=held,
        peak_deviation=spread,
        categories=categories,
        stage=peak.stage,
        fits=probability_below(np.full(len(work), limit_bytes), held, spread),
    )


def model_flops(work: Work) -> Numbers:
    """FLOPs of the model in a step of each plan, over all devices, without recomputation."""
    sums = np.bincount(  # floats already, which its types do not tell
        work.kernels.slot,
        work.kernels.flops,
        minlength=len(work.cases.tensor) * len(PASSES),
    ).astype(np.float64)
    sums = sums.reshape(-1, len(PASSES))
    at: dict[str, Numbers] = {name: sums[:, index] for index, name in enumerate(PASSES)}
    ends = at["embedding_forward"] + at["embedding_backward"] + at["head_forward"]
    ends = ends + at["head_backward"]
    block = at["block_forward"] + at["block_backward"]
    execution, rows = work.executions, work.rows
    micro = ends[rows.case] + rows.depth * block[rows.case]
    flops: Numbers = micro * execution.tensor * execution.accumulation * execution.data
    return flops


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SearchPrior:
    """Columns, a row for each plan.

    `log_rate` is the logarithm of samples per second, `log_share` that of the peak over the
    limit. The parts, of shape (plans, coefficients), say by how much a standard deviation of each
    coefficient moves them: coefficients are common to all plans, so that what one plan shows of
    them tells of the others.
    """

    log_rate: Numbers
    rate_parts: Numbers
    log_share: Numbers
    share_parts: Numbers
    step_seconds: Numbers

    def __len__(self) -> int:
        return len(self.log_rate)

    def take(self, rows: NDArray[np.intp]) -> Self:
        """Those of some plans."""
        return type(self)(**{f.name: getattr(self, f.name)[rows] for f in fields(self)})


def joined(parts: Sequence[SearchPrior], rows: Sequence[NDArray[np.intp]]) -> SearchPrior:
    """Prospects of parts of a table as those of the whole.

    Args:
        parts: Of some of its plans each.
        rows: Where in the table those stand; each row of it stands in one of them.
    """
    order = np.argsort(np.concatenate(rows))
    return SearchPrior(
        **{
            field.name: np.concatenate([getattr(part, field.name) for part in parts])[order]
            for field in fields(SearchPrior)
        }
    )


def search_prior(work: Work, belief: Calibration, limit_bytes: float) -> SearchPrior:
    """The prospects of plans.

    Args:
        work: The plans.
        belief: Coefficients and scales.
        limit_bytes: What one rank may hold.
    """
    terms = step_terms(work, belief.time).seconds
    held = peak_bytes(work, belief.memory).bytes
    execution = work.executions
    samples = (execution.micro_batch * execution.accumulation * execution.data).astype(float)
    seconds = belief.time_scales.scaled(terms).sum(axis=1)
    peak = belief.memory_scales.scaled(held).sum(axis=1)
    own = execution.stack == STACKS.index("torch")
    sureness = np.where(own, belief.own_sureness, belief.memory_scales.sureness)
    return SearchPrior(
        log_rate=np.log(samples / np.maximum(seconds, _LEAST)),
        rate_parts=belief.time_scales.parts(terms),
        log_share=np.log(np.maximum(peak, _LEAST) / limit_bytes),
        share_parts=belief.memory_scales.parts(held, sureness),
        step_seconds=seconds,
    )
