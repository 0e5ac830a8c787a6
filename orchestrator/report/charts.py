"""Charts in the schema of plotly.js.

The page sets the legend, and the colours of text and grid (`static/page.js`). It ships the basic
bundle of plotly, which draws `scatter` and `bar` but no traces that need WebGL.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from search_spaces.specification.schema import GIB

# the colours of Okabe and Ito, distinct for colour-blind readers too, and mixtures of them
COLOURS = (
    *("#56b4e9", "#0072b2", "#cc79a7", "#7fd0c9", "#009e73", "#e69f00"),
    *("#8c8cd9", "#999999", "#b8b08d", "#d55e00", "#c9b400"),
)
LINE_COLOUR = "#d62728"
BEST_COLOUR = "#009e73"
_MARGIN = 200  # pixels of axis and legend
_BAR = 34  # pixels of a bar

Figure = Mapping[str, Any]  # traces as `data`, and their `layout`
Trace = dict[str, Any]


def points(
    name: str,
    places: Sequence[tuple[float, float]],
    colour: str | Sequence[float],
    texts: Sequence[str] = (),
    *,
    hover: str = "%{text}<extra></extra>",
    **marker: object,
) -> Trace:
    """Makes a trace of points, each with a text to hover or all with a template."""
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "x": [x for x, _ in places],
        "y": [y for _, y in places],
        "marker": {"color": colour, **marker},
        "text": texts,
        "hovertemplate": hover,
        "cliponaxis": False,  # draws points on the axis whole
    }


def staircase(name: str, places: Sequence[tuple[float, float]]) -> Trace:
    """Makes a line of steps, the colour of the best."""
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": [x for x, _ in places],
        "y": [y for _, y in places],
        "line": {"color": BEST_COLOUR, "width": 2, "shape": "hv"},
        "hoverinfo": "skip",
    }


def speed_chart(
    traces: Sequence[Trace], x_axis: str, height: int, shapes: Sequence[Trace] = (), **axis: object
) -> Figure:
    """Makes a chart of samples/s over an axis with this title, in pixels high."""
    layout = {
        "height": height,
        "xaxis": {"title": {"text": x_axis}, **(axis or {"rangemode": "tozero"})},
        "yaxis": {"title": {"text": "samples/s"}, "rangemode": "tozero"},
        "shapes": shapes,
    }
    return {"data": traces, "layout": layout}


def stacked_bars(
    title: str,
    labels: Sequence[str],
    parts: Mapping[str, Sequence[float]],
    unit: str,
    shapes: Sequence[Trace] = (),
) -> Figure:
    """Makes a bar for each label, first on top, of parts by name, over an axis with this title."""
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "name": name,
            "x": values,
            "y": labels,
            "marker": {"color": colour},
            "hovertemplate": f"{name}: %{{x:.3g}} {unit}<extra>%{{y}}</extra>",
        }
        for (name, values), colour in zip(parts.items(), COLOURS, strict=False)
    ]
    layout = {
        "barmode": "stack",
        "height": _MARGIN + _BAR * len(labels),
        "xaxis": {"title": {"text": title}},
        "yaxis": {"autorange": "reversed", "type": "category"},
        "shapes": shapes,
    }
    return {"data": data, "layout": layout}


def memory_lines(line_bytes: float, limit_bytes: float) -> list[Trace]:
    """Makes vertical lines on a GiB axis: solid where the headroom begins, dotted at the limit."""
    lines = ((line_bytes / GIB, "solid"), (limit_bytes / GIB, "dot"))
    return [
        {
            "type": "line",
            **{"x0": at, "x1": at, "yref": "paper", "y0": 0, "y1": 1},
            "line": {"color": LINE_COLOUR, "width": 2, "dash": dash},
        }
        for at, dash in lines
    ]


def hover_text(*lines: str) -> str:
    """Joins lines for the `text` of a trace, with tags escaped that plotly would interpret."""
    escaped = (line.replace("&", "&amp;").replace("<", "&lt;") for line in lines)
    return "<br>".join(escaped)
