"""Charts as plotly.js takes them: types of the part of its schema in use, and shared parts.

Colours of text and grid are the page's (`static/page.js`). Pages ship plotly's basic bundle, which
draws `scatter` and `bar` but none of the traces that need WebGL.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NotRequired, TypedDict

from search_spaces.spec.schema import GIB

Dash = Literal["solid", "dot", "dash"]
Values = Sequence[float] | Sequence[str]
# Okabe and Ito's colours, which people who see fewer of them tell apart, and mixtures of them
COLOURS = (
    *("#56b4e9", "#0072b2", "#cc79a7", "#7fd0c9", "#009e73", "#e69f00"),
    *("#8c8cd9", "#999999", "#b8b08d", "#d55e00", "#c9b400"),
)
LINE_COLOUR = "#d62728"
BEST_COLOUR = "#009e73"
_AROUND_BARS = 200  # pixels of axis and legend
_BAR = 34  # pixels of a bar


class Title(TypedDict):
    """A text beside an axis or a colour bar."""

    text: str
    side: NotRequired[Literal["right"]]  # of a colour bar: along it


class ColorBar(TypedDict, total=False):
    """The scale beside a chart whose points are coloured by a number."""

    title: Title
    thickness: float  # pixels
    len: float  # share of the chart's height


class Marker(TypedDict, total=False):
    """Points, or bars, of a trace."""

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


class ErrorBars(TypedDict):
    """Lengths up and down from each value."""

    type: Literal["data"]
    symmetric: bool
    array: Sequence[float]
    arrayminus: Sequence[float]


class Scatter(TypedDict):
    """Points, lines, or both."""

    type: Literal["scatter"]
    mode: Literal["lines", "markers", "lines+markers"]
    name: str
    x: Sequence[float]
    y: Sequence[float]
    line: NotRequired[Line]
    marker: NotRequired[Marker]
    error_y: NotRequired[ErrorBars]
    text: NotRequired[Sequence[str]]
    customdata: NotRequired[Sequence[float]]
    hovertemplate: NotRequired[str]
    hoverinfo: NotRequired[Literal["skip"]]
    cliponaxis: NotRequired[bool]


class Bar(TypedDict):
    """Bars, upright unless `orientation` is `h`."""

    type: Literal["bar"]
    x: Values
    y: Values
    marker: Marker
    hovertemplate: str
    name: NotRequired[str]
    orientation: NotRequired[Literal["h"]]
    text: NotRequired[Sequence[str]]
    textposition: NotRequired[Literal["none"]]


Trace = Scatter | Bar


class Axis(TypedDict, total=False):
    """An axis; `range` of a logarithmic one is in powers of ten."""

    title: Title
    type: Literal["log", "category"]
    range: tuple[float, float]
    rangemode: Literal["tozero"]
    autorange: Literal["reversed"]
    tickvals: Sequence[float]
    ticktext: Sequence[str]
    dtick: float
    categoryorder: Literal["array"]
    categoryarray: Sequence[str]


class Shape(TypedDict):
    """A line across the chart; `paper` counts from 0 to 1 over its width or height."""

    type: Literal["line"]
    x0: float
    x1: float
    y0: float
    y1: float
    line: Line
    xref: NotRequired[Literal["paper"]]
    yref: NotRequired[Literal["paper"]]


class Legend(TypedDict):
    """Places the names of the traces."""

    orientation: Literal["h"]
    traceorder: Literal["normal"]
    y: float
    yref: Literal["container"]
    yanchor: Literal["bottom"]


class Layout(TypedDict):
    """All of a chart but its traces."""

    height: float  # pixels
    xaxis: Axis
    yaxis: Axis
    legend: NotRequired[Legend]
    showlegend: NotRequired[Literal[True]]  # Plotly draws none for a lone trace
    barmode: NotRequired[Literal["stack"]]
    shapes: NotRequired[Sequence[Shape]]


class Figure(TypedDict):
    """A chart."""

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
    """An axis from low to high, with numbers that people read: Plotly shortens 20 to 2."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    marks = [float(f"{digit}e{decade}") for decade in decades for digit in (1, 2, 5)]
    if len(decades) > 4:
        marks = marks[::3]
    shown = [mark for mark in marks if low <= mark <= high]
    return {
        "type": "log",
        "range": (math.log10(low), math.log10(high)),
        "tickvals": shown,
        "ticktext": [f"{mark:,g}" for mark in shown],
    }


def memory_lines(*, line_bytes: float, limit_bytes: float) -> list[Shape]:
    """Upright lines over an axis of GiB: solid where the headroom begins, dotted at the limit."""
    return [_upright(line_bytes / GIB, "solid"), _upright(limit_bytes / GIB, "dot")]


def _upright(at: float, dash: Dash) -> Shape:
    line: Line = {"color": LINE_COLOUR, "width": 2, "dash": dash}
    return {"type": "line", "x0": at, "x1": at, "yref": "paper", "y0": 0, "y1": 1, "line": line}


def part_of_bars(
    name: str, colour: str, labels: Sequence[str], values: Sequence[float], unit: str
) -> Bar:
    """One part of stacked bars: the value of each bar, whose labels stand at the axis."""
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
    """Layout of so many stacked bars over an axis of this title, the first bar on top."""
    return {
        "barmode": "stack",
        "height": _AROUND_BARS + _BAR * count,
        "xaxis": {"title": {"text": title}},
        "yaxis": {"autorange": "reversed", "type": "category"},
        "legend": LEGEND,
        "showlegend": True,
    }


def hover_text(*lines: str) -> str:
    """Lines for a trace's `text`, in which Plotly reads tags: those of the lines are escaped."""
    escaped = (line.replace("&", "&amp;").replace("<", "&lt;") for line in lines)
    return "<br>".join(escaped)
