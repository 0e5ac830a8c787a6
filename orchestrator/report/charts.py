"""Types for the plotly.js schema, as far as it is used, and the shared parts of charts.

The page sets the colours of text and grid (`static/page.js`). It ships the basic bundle of plotly,
which draws `scatter` and `bar` but no traces that need WebGL.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NotRequired, TypedDict

from search_spaces.spec.schema import GIB

Dash = Literal["solid", "dot", "dash"]
Values = Sequence[float] | Sequence[str]
# the colours of Okabe and Ito, distinct for colour-blind readers too, and mixtures of them
COLOURS = (
    *("#56b4e9", "#0072b2", "#cc79a7", "#7fd0c9", "#009e73", "#e69f00"),
    *("#8c8cd9", "#999999", "#b8b08d", "#d55e00", "#c9b400"),
)
LINE_COLOUR = "#d62728"
BEST_COLOUR = "#009e73"
_MARGIN = 200  # pixels of axis and legend
_BAR = 34  # pixels of a bar


class Title(TypedDict):
    """The title of an axis or a colour bar."""

    text: str
    side: NotRequired[Literal["right"]]  # for a colour bar: along its side


class ColorBar(TypedDict, total=False):
    """The colour scale of a chart whose points are coloured by a number."""

    title: Title
    thickness: float  # pixels
    len: float  # share of the chart's height


class Marker(TypedDict, total=False):
    """The points or bars of a trace."""

    color: str | Sequence[float]
    symbol: str
    size: float  # pixels
    opacity: float
    colorscale: Sequence[tuple[float, str]]
    cmin: float
    cmax: float
    colorbar: ColorBar


class Line(TypedDict, total=False):
    """The line of a trace or of a shape."""

    color: str
    width: float  # pixels
    dash: Dash
    shape: Literal["linear", "hv"]


class Scatter(TypedDict):
    """A trace of points, lines or both."""

    type: Literal["scatter"]
    mode: Literal["lines", "markers", "lines+markers"]
    name: str
    x: Sequence[float]
    y: Sequence[float]
    line: NotRequired[Line]
    marker: NotRequired[Marker]
    text: NotRequired[Sequence[str]]
    hovertemplate: NotRequired[str]
    hoverinfo: NotRequired[Literal["skip"]]
    cliponaxis: NotRequired[bool]


class Bar(TypedDict):
    """A trace of bars, vertical unless `orientation` is `h`."""

    type: Literal["bar"]
    x: Values
    y: Values
    marker: Marker
    hovertemplate: str
    name: NotRequired[str]
    orientation: NotRequired[Literal["h"]]


Trace = Scatter | Bar


class Axis(TypedDict, total=False):
    """An axis; the `range` of a logarithmic one is in powers of ten."""

    title: Title
    type: Literal["log", "category"]
    range: tuple[float, float]
    rangemode: Literal["tozero"]
    autorange: Literal["reversed"]
    tickvals: Sequence[float]
    ticktext: Sequence[str]


class Shape(TypedDict):
    """A line across the chart; `paper` counts from 0 to 1 over its width or height."""

    type: Literal["line"]
    x0: float
    x1: float
    y0: float
    y1: float
    line: Line
    yref: NotRequired[Literal["paper"]]


class Legend(TypedDict):
    """The position of the names of the traces."""

    orientation: Literal["h"]
    traceorder: Literal["normal"]
    y: float
    yref: Literal["container"]
    yanchor: Literal["bottom"]


class Layout(TypedDict):
    """Everything in a chart except its traces."""

    height: float  # pixels
    xaxis: Axis
    yaxis: Axis
    legend: NotRequired[Legend]
    showlegend: NotRequired[Literal[True]]  # plotly draws no legend for a single trace
    barmode: NotRequired[Literal["stack"]]
    shapes: NotRequired[Sequence[Shape]]


class Figure(TypedDict):
    """A chart: traces and layout."""

    data: Sequence[Trace]
    layout: Layout


LEGEND: Legend = {
    "orientation": "h",
    "traceorder": "normal",
    "y": 0,
    "yref": "container",
    "yanchor": "bottom",
}


def logarithmic(low: float, high: float) -> Axis:
    """Makes a logarithmic axis with full tick labels, where plotly would shorten 20 to 2."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    marks = [float(f"{digit}e{decade}") for decade in decades for digit in (1, 2, 5)]
    if len(decades) > 4:
        marks = marks[::3]
    ticks = [mark for mark in marks if low <= mark <= high]
    return {
        "type": "log",
        "range": (math.log10(low), math.log10(high)),
        "tickvals": ticks,
        "ticktext": [f"{mark:,g}" for mark in ticks],
    }


def memory_lines(*, line_bytes: float, limit_bytes: float) -> list[Shape]:
    """Makes vertical lines on a GiB axis: solid where the headroom begins, dotted at the limit."""
    return [_vertical(line_bytes / GIB, "solid"), _vertical(limit_bytes / GIB, "dot")]


def _vertical(at: float, dash: Dash) -> Shape:
    line: Line = {"color": LINE_COLOUR, "width": 2, "dash": dash}
    return {"type": "line", "x0": at, "x1": at, "yref": "paper", "y0": 0, "y1": 1, "line": line}


def part_of_bars(
    name: str, colour: str, labels: Sequence[str], values: Sequence[float], unit: str
) -> Bar:
    """Makes one segment of stacked bars: a value for each bar label on the axis."""
    return {
        "type": "bar",
        "orientation": "h",
        "name": name,
        "x": values,
        "y": labels,
        "marker": {"color": colour},
        "hovertemplate": f"{name}: %{{x:.3g}} {unit}<extra>%{{y}}</extra>",
    }


def stacked(title: str, count: int) -> Layout:
    """Makes the layout of `count` stacked bars, first on top, over an axis with this title."""
    return {
        "barmode": "stack",
        "height": _MARGIN + _BAR * count,
        "xaxis": {"title": {"text": title}},
        "yaxis": {"autorange": "reversed", "type": "category"},
        "legend": LEGEND,
        "showlegend": True,
    }


def hover_text(*lines: str) -> str:
    """Joins lines for the `text` of a trace, with tags escaped that plotly would interpret."""
    escaped = (line.replace("&", "&amp;").replace("<", "&lt;") for line in lines)
    return "<br>".join(escaped)
