"""The arithmetic of one plan, term by term."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from orchestrator.planning.expected import Expected, expected
from orchestrator.planning.quantities import Quantity, quantities_of_memory, quantities_of_time
from orchestrator.planning.sized import Sized
from search_spaces.forecast.belief import Belief
from search_spaces.forecast.bytes import CATEGORIES, peak_bytes
from search_spaces.forecast.executions import STACKS, Numbers
from search_spaces.forecast.scales import Scales
from search_spaces.forecast.seconds import TERMS, step_terms


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """Seconds of a step, or bytes at the peak, of one kind.

    `amount` is what is expected, `scale` by what measurements corrected it (1: nothing did);
    `of` is what it consists of.
    """

    name: str
    amount: float
    scale: float
    of: tuple[Quantity, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """A plan's forecast with where each figure comes from.

    `time_doubts` and `memory_doubts` say what makes the intervals as wide as they are: shares of
    the variance of the logarithm, largest first.
    """

    expected: Expected
    time: tuple[Term, ...]
    memory: tuple[Term, ...]
    time_doubts: tuple[tuple[str, float], ...]
    memory_doubts: tuple[tuple[str, float], ...]
    provenance: str


def explained(sized: Sized, row: int, belief: Belief) -> Explained:
    """The arithmetic of the plan in a row."""
    one = np.array([row])
    work, told = sized.work.take(one), sized.forecasts.take(one)
    steps, held = step_terms(work, belief.time), peak_bytes(work, belief.memory)
    times, sizes = belief.time_scales.mean, belief.memory_scales.mean
    own = bool(work.executions.stack[0] == STACKS.index("torch"))
    seconds_of, bytes_of = quantities_of_time(work, told), quantities_of_memory(work)
    return Explained(
        expected=expected(sized, row),
        time=tuple(
            Term(
                name=name,
                amount=float(told.terms[0, at]),
                scale=float(np.exp(times[0] + times[at + 1])),
                of=tuple(seconds_of.get(name, ())),
            )
            for at, name in enumerate(TERMS)
        ),
        memory=tuple(
            Term(
                name=name,
                amount=float(told.categories[0, at]),
                scale=float(np.exp(sizes[0] + sizes[at + 1])),
                of=tuple(bytes_of.get(name, ())),
            )
            for at, name in enumerate(CATEGORIES)
        ),
        time_doubts=_doubts(belief.time_scales, steps.seconds[0], TERMS),
        memory_doubts=_doubts(
            belief.memory_scales, held.bytes[0], CATEGORIES, belief.own_sureness if own else None
        ),
        provenance=belief.provenance,
    )


def _doubts(
    scales: Scales, terms: Numbers, names: tuple[str, ...], sureness: float | None = None
) -> tuple[tuple[str, float], ...]:
    """Shares of the variance of the sum's logarithm: by term, in common, and of single plans."""
    shares, misfit = scales.doubts(terms, sureness)
    found = dict(zip(("what all plans have in common", *names), shares, strict=True))
    found["one plan from the next"] = misfit
    told = [(name, float(share)) for name, share in found.items() if share >= 0.01]
    return tuple(sorted(told, key=lambda entry: -entry[1]))
