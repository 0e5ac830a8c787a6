"""Who proposes plans, what they know, and what they say."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from search_spaces.forecast.prospects import Prospects
from search_spaces.plan import Plan
from search_spaces.record import Record

Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Known:
    """What is known when a plan is proposed.

    `free` says of each plan of the space whether no trial of it has ended or is under way; at
    least one is. `prospects` are the forecasts of all of them, None while there are none.
    """

    records: Sequence[Record]
    free: Flags
    running: tuple[Plan, ...] = ()
    prospects: Prospects | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A plan to try next, and why.

    `saving` is the share of a run's time that trying it is expected to save, and `seconds` what
    it takes; None where nobody can say.
    """

    plan: Plan
    why: str
    saving: float | None = None
    seconds: float | None = None


class AbstractProposer(ABC):
    """Proposes plans of one space."""

    @abstractmethod
    def propose(self, known: Known) -> Proposal:
        """One of the free plans."""

    def left(self, known: Known) -> float | None:
        """How much faster than the best any free plan is at most, with 95 %; None: unknown."""
        return None
