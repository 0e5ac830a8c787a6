"""What an answer shows of a whole space: fronts, a cloud of points, notes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from orchestrator.planning.expected import Expected, expected
from orchestrator.planning.fronts import front, thinned
from orchestrator.planning.planned import SizeAnswer
from orchestrator.planning.question import Question
from orchestrator.planning.sized import Sized

MOST_POINTS = 2_000  # of the chart that shows all plans
_FRONT_STEP = 0.03  # share by which a plan of the front is faster than the one before


def memory_front(sized: Sized) -> tuple[Expected, ...]:
    """Plans that no other beats with less memory, up to the limit."""
    told = sized.forecasts
    within = np.flatnonzero(sized.hosted & (told.peak_bytes <= sized.limit_bytes))
    rows = within[front(told.peak_bytes[within], told.samples_per_second[within])]
    shown = thinned(rows, told.samples_per_second, step=_FRONT_STEP, most=10)
    return tuple(expected(sized, int(row)) for row in shown)


def cloud(sized: Sized) -> tuple[tuple[float, float, float], ...]:
    """All plans, or every so many of them in the order of their speed, the front with them."""
    told = sized.forecasts
    rows = np.flatnonzero(sized.hosted)
    rows = rows[np.argsort(-told.samples_per_second[rows], kind="stable")]
    if len(rows) > MOST_POINTS:
        rows = rows[np.linspace(0, len(rows) - 1, MOST_POINTS).astype(np.int64)]
        hosted = np.flatnonzero(sized.hosted)
        kept = hosted[front(told.peak_bytes[hosted], told.samples_per_second[hosted])]
        rows = np.unique(np.concatenate([rows, kept]))
    columns = (told.peak_bytes[rows], told.samples_per_second[rows], told.fits[rows])
    return tuple(
        zip(
            *(np.char.mod("%.5g", column).astype(float).tolist() for column in columns), strict=True
        )
    )


def price_front(sizes: tuple[SizeAnswer, ...]) -> tuple[int, ...]:
    """Counts of devices that no other beats in speed for less money per token."""
    priced = [size for size in sizes if size.price_per_billion_tokens is not None]
    if not priced:
        return ()
    cost = np.array([size.price_per_billion_tokens for size in priced], dtype=float)
    speed = np.array([size.best[0].samples_per_second.value for size in priced])
    return tuple(sorted(priced[row].ranks for row in front(cost, speed).tolist()))


def notes(question: Question, longest: int, mean: float) -> tuple[str, ...]:
    """What a user should know beside the figures; tokens of the longest sample and in the mean."""
    return (*_precision_notes(question), *_length_notes(question, longest, mean))


def _precision_notes(question: Question) -> Iterator[str]:
    precision, device = question.spec.train.precision, question.device
    if precision != "fp32" and not device.peak_flops_per_second(precision):
        other = next((p for p in ("fp16", "bf16") if device.peak_flops_per_second(p)), "fp32")
        yield (
            f"{device.name} has no units for {precision}, which is forecast at the speed of fp32;"
            f" train.precision: {other} would be faster"
        )


def _length_notes(question: Question, longest: int, mean: float) -> Iterator[str]:
    if question.spec.data.kind != "fixed":
        yield (
            f"samples have up to {longest:,} tokens, {mean:,.0f} in the mean: peaks are those of"
            " the longest, seconds those of rows as full as each way of batching makes them"
        )
