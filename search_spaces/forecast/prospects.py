"""What a search needs of a forecast: logarithms, and how far each coefficient moves them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Self

import numpy as np
from numpy.typing import NDArray

from search_spaces.forecast.belief import Belief
from search_spaces.forecast.bytes import peak_bytes
from search_spaces.forecast.executions import STACKS, Numbers
from search_spaces.forecast.seconds import step_terms
from search_spaces.forecast.work import Work

_LEAST = 1e-30


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prospects:
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


def joined(parts: Sequence[Prospects], rows: Sequence[NDArray[np.intp]]) -> Prospects:
    """Prospects of parts of a table as those of the whole.

    Args:
        parts: Of some of its plans each.
        rows: Where in the table those stand; each row of it stands in one of them.
    """
    order = np.argsort(np.concatenate(rows))
    return Prospects(
        **{
            field.name: np.concatenate([getattr(part, field.name) for part in parts])[order]
            for field in fields(Prospects)
        }
    )


def prospects(work: Work, belief: Belief, limit_bytes: float) -> Prospects:
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
    return Prospects(
        log_rate=np.log(samples / np.maximum(seconds, _LEAST)),
        rate_parts=belief.time_scales.parts(terms),
        log_share=np.log(np.maximum(peak, _LEAST) / limit_bytes),
        share_parts=belief.memory_scales.parts(held, sureness),
        step_seconds=seconds,
    )
