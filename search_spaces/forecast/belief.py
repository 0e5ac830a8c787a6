"""What is believed of software and machines: coefficients, and how sure they are."""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Self

import numpy as np
from pydantic import TypeAdapter

from search_spaces.forecast.bytes import MemoryCoefficients, peak_bytes
from search_spaces.forecast.coefficients import TimeCoefficients
from search_spaces.forecast.executions import Numbers
from search_spaces.forecast.scales import Scales
from search_spaces.forecast.seconds import step_terms
from search_spaces.forecast.work import Work

HOST_WEIGHT = 0.14  # of a measurement on a CPU: noise of 8 % where that of a GPU is 3 %
PRIOR = "prior.json"  # fitted by `python -m benchmarks.published.fit`


@dataclass(frozen=True, slots=True, kw_only=True)
class Belief:
    """Coefficients as fitted, and the scales of each term, which measurements correct.

    `provenance` says what the coefficients were fitted to.
    """

    time: TimeCoefficients
    time_scales: Scales
    memory: MemoryCoefficients
    memory_scales: Scales
    own_sureness: float  # of memory, where Plimsoll's own loop allocates what was traced
    provenance: str

    def learned(
        self, work: Work, step_seconds: Numbers, held_bytes: Numbers, weight: Numbers | None = None
    ) -> Self:
        """The belief after measurements of some plans.

        Args:
            work: The plans that were measured.
            step_seconds: Seconds of an optimizer step; nan where it was not measured.
            held_bytes: Bytes that the fullest rank held; nan where it was not measured.
            weight: How much each measurement counts, 1 for a whole one.
        """
        if not len(work):
            return self
        # cores that share caches and memory measure less alike than devices of their own
        count = np.ones(len(work)) if weight is None else weight
        weight = np.where(work.rows.on_cpu > 0, HOST_WEIGHT * count, count)
        terms = step_terms(work, self.time).seconds
        held = peak_bytes(work, self.memory).bytes
        return replace(
            self,
            time_scales=self.time_scales.learned(terms, step_seconds, weight),
            memory_scales=self.memory_scales.learned(held, held_bytes, weight),
        )


_BELIEFS: TypeAdapter[Belief] = TypeAdapter(Belief)


def shipped_belief() -> Belief:
    """What Plimsoll believes before it has measured anything."""
    return belief_from_json((files(__package__) / PRIOR).read_text("utf-8"))


def belief_from_json(text: str) -> Belief:
    """The belief that `belief_to_json` wrote."""
    return _BELIEFS.validate_json(text)


def belief_to_json(belief: Belief) -> str:
    """As JSON, which people can read."""
    return _BELIEFS.dump_json(belief, indent=1).decode() + "\n"
