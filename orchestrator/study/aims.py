"""A sweep's goal as a search on a table of plans is told of it."""

from __future__ import annotations

import math

import numpy as np

from orchestrator.core.objective import Goal
from orchestrator.search.aim import Aim
from search_spaces.plan_table import PlanTable


def aim_of(goal: Goal, table: PlanTable) -> Aim:
    """The aim among the plans of the table; logarithms, those of prices for an hour."""
    price = None
    prices = [goal.price_on(accelerator) for accelerator in table.values["accelerator"]]
    if all(prices):
        ranks = table.column("tensor") * table.column("pipeline") * table.column("data")
        each = np.array(prices, dtype=float)[table.codes["accelerator"]]
        price = np.log(each * ranks / 3600)
    bounds = [
        np.full(len(table), math.log(least)) + (price if metric == "samples_per_price" else 0.0)
        for metric, least in goal.least
    ]
    return Aim(
        of="room" if goal.metric == "headroom" else "rate",
        line=math.log1p(-goal.headroom),
        price=price if goal.metric == "samples_per_price" else None,
        least=np.maximum.reduce(bounds) if bounds else None,
    )
