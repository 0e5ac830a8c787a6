"""What one plan is expected to take: a row of the columns as a value that can be kept."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from orchestrator.planning.sized import Sized, alike, fits_within
from orchestrator.view.plan_words import lossy_words
from search_spaces.estimate import Estimate
from search_spaces.forecast.scales import SURE
from search_spaces.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """The forecast of one plan; intervals hold the value with 95 % confidence.

    `seconds` are those of one optimizer step by term, `held_bytes` those of the rank that holds
    most at its peak by category; both add up to their totals. `alike` counts the plans that no
    forecast tells from this one, itself included. `stage` is where the pipeline is fullest,
    None without one.
    """

    key: str
    plan: Plan
    world_size: int
    samples_per_second: Estimate
    tokens_per_second_per_device: float
    mfu: float
    step_seconds: Estimate
    peak_bytes: Estimate
    fits: float  # probability that the peak stays below the limit
    keeps: bool  # whether it is recommended: below the line, and sure enough to fit
    limited_by: str
    stage: str | None
    seconds: tuple[tuple[str, float], ...]
    held_bytes: tuple[tuple[str, float], ...]
    host_bytes: float  # of the host's memory, one rank
    recomputed: float
    hidden_seconds: float
    alike: int
    lossy: str = ""  # which knobs change the numerics, empty if none does


def expected(sized: Sized, row: int, limit_bytes: float | None = None) -> Expected:
    """The plan in a row; `limit_bytes` is what P(fits) is told for, the question's if None."""
    told, plan = sized.forecasts, sized.plan(row)
    one = told.take(np.array([row]))
    limit = sized.limit_bytes if limit_bytes is None else limit_bytes
    return Expected(
        key=plan.key,
        plan=plan,
        world_size=plan.world_size,
        samples_per_second=_around(one.samples_per_second[0], one.step_deviation[0]),
        tokens_per_second_per_device=float(one.tokens_per_second_per_device[0]),
        mfu=float(one.mfu[0]),
        step_seconds=_around(one.step_seconds[0], one.step_deviation[0]),
        peak_bytes=_around(one.peak_bytes[0], one.peak_deviation[0]),
        fits=float(fits_within(one, limit)[0]),
        keeps=bool(sized.keeps[row]),
        limited_by=one.limited_by(0),
        stage=one.fullest_stage(0) if plan.pipeline > 1 else None,
        seconds=tuple(one.by_term(0).items()),
        held_bytes=tuple(one.by_category(0).items()),
        host_bytes=float(sized.host_bytes[row]),
        recomputed=float(one.recomputed[0]),
        hidden_seconds=float(one.hidden_seconds[0]),
        alike=len(alike(told, row)),
        lossy=lossy_words(plan, sized.spec),
    )


def _around(value: float, deviation: float) -> Estimate:
    factor = float(np.exp(SURE * deviation))
    return Estimate(value=float(value), low=float(value) / factor, high=float(value) * factor)
