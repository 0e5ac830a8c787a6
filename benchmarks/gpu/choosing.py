"""Choice of the few plans of a space to measure, in which each value of each knob has its share."""

from __future__ import annotations

import numpy as np

from search_spaces.facts import ClusterFacts
from search_spaces.plan import Plan
from search_spaces.plan_table import KNOB_NAMES, PlanTable
from search_spaces.rules.base import RuleContext
from search_spaces.space import Space, build_space
from search_spaces.spec.schema import SweepSpec
from workers.prepare import prepare

_JITTER = 1e-3  # decides between plans that are as good
_FOLLOWS = "accumulation"  # from the other knobs


def space_of(spec: SweepSpec, here: ClusterFacts) -> Space:
    """The legal plans of one rank on this machine."""
    around = RuleContext(spec=spec, model=prepare(spec), cluster=here)
    return build_space(around, 1)


def balanced(table: PlanTable, count: int, seed: int) -> tuple[Plan, ...]:
    """Chooses `count` plans, each next one that whose knobs have the values seen least.

    The first plans of a longer choice are those of a shorter one, so that a table can grow.
    """
    rng = np.random.default_rng(seed)
    free = np.ones(len(table), dtype=bool)
    names = [name for name in KNOB_NAMES if len(table.values[name]) > 1 and name != _FOLLOWS]
    seen = {name: np.zeros(len(table.values[name])) for name in names}
    jitter = _JITTER * rng.random(len(table))
    chosen: list[int] = []
    while len(chosen) < min(count, len(table)):
        worth = jitter.copy()
        for name in names:
            worth += 1 / (1 + seen[name][table.codes[name]])
        row = int(np.argmax(np.where(free, worth, -np.inf)))
        free[row] = False
        for name in names:
            seen[name][table.codes[name][row]] += 1
        chosen.append(row)
    return tuple(table.plan(row) for row in chosen)
