"""Parts of charts, as Plotly takes them. Colours of text and grid are the page's."""

from __future__ import annotations

import math
from typing import Any

from search_spaces.spec.schema import GIB

Figure = dict[str, Any]

# Okabe and Ito's colours, which people who see fewer of them tell apart, and mixtures of them
COLOURS = (
    *("#56b4e9", "#0072b2", "#cc79a7", "#7fd0c9", "#009e73", "#e69f00"),
    *("#8c8cd9", "#999999", "#b8b08d", "#d55e00", "#c9b400"),
)
LINE_COLOUR = "#d62728"
BEST_COLOUR = "#009e73"
_TALL = 70  # pixels around the bars
_BAR = 34  # pixels of a bar
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


def bar(name: str, colour: str, values: list[float], unit: str) -> Figure:
    """One part of stacked bars, a value for each."""
    return {
        "type": "bar",
        "orientation": "h",
        "name": name,
        "x": [float(f"{value:.4g}") for value in values],
        "marker": {"color": colour},
        "hovertemplate": f"{name}: %{{x:.3g}} {unit}<extra>plan %{{y}}</extra>",
    }


def stacked(title: str, count: int) -> Figure:
    """The layout of so many stacked bars."""
    return {
        "barmode": "stack",
        "height": _TALL + 130 + _BAR * count,
        "xaxis": {"title": {"text": title}},
        "yaxis": {"title": {"text": "plan"}, "autorange": "reversed", "type": "category"},
        "legend": LEGEND,
    }
