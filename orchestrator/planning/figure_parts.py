"""What the page's charts have in common."""

from __future__ import annotations

import math
from typing import Any

from orchestrator.planning.expected import Expected
from orchestrator.planning.words import interval, percent, significant
from orchestrator.view.plan_words import plan_words
from orchestrator.view.words import gib
from search_spaces.spec.schema import GIB

Figure = dict[str, Any]

LINE_COLOUR = "#d62728"
BEST_COLOUR = "#009e73"
LEGEND = {
    "orientation": "h",
    "traceorder": "normal",
    "y": 0,
    "yref": "container",
    "yanchor": "bottom",
}


def logarithmic(low: float, high: float) -> Figure:
    """An axis from low to high, with numbers that people read: Plotly shortens 20 to 2."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    marks = [float(f"{digit}e{decade}") for decade in decades for digit in (1, 2, 5)]
    if len(decades) > 4:
        marks = marks[::3]
    shown = [mark for mark in marks if low <= mark <= high]
    return {
        "type": "log",
        "range": [math.log10(low), math.log10(high)],
        "tickvals": shown,
        "ticktext": [f"{mark:,g}" for mark in shown],
    }


def upright(size_bytes: float, dash: str) -> Figure:
    """A line that crosses the chart at so many GiB."""
    at = size_bytes / GIB
    line = {"color": LINE_COLOUR, "width": 2, "dash": dash}
    return {"type": "line", "x0": at, "x1": at, "yref": "paper", "y0": 0, "y1": 1, "line": line}


def hover(told: Expected) -> str:
    """What is shown where the pointer rests on a plan."""
    return (
        f"{plan_words(told.plan)}<br>{significant(told.samples_per_second.value)} samples/s"
        f" ({interval(told.samples_per_second)})<br>{gib(told.peak_bytes.value)} GiB,"
        f" fits with {percent(told.fits)}"
    )
