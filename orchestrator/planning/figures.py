"""Charts of what is expected of a model on a device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from orchestrator.planning.expected import Expected
from orchestrator.planning.figure_parts import hover
from orchestrator.planning.planned import Planned
from orchestrator.planning.words import category_words, term_words
from orchestrator.report.charts import (
    BEST_COLOUR,
    COLOURS,
    LEGEND,
    Figure,
    Layout,
    Scatter,
    Shape,
    Trace,
    logarithmic,
    memory_lines,
    part_of_bars,
    stacked,
)
from orchestrator.view.words import gib
from search_spaces.forecast.bytes import CATEGORIES
from search_spaces.forecast.seconds import TERMS
from search_spaces.spec.schema import GIB

_FAR = 10.0  # times the limit: what lies beyond says nothing


def figures(planned: Planned) -> Mapping[str, Figure]:
    """Charts by the name of the place where they are drawn; those without data are left out."""
    found: dict[str, Figure] = {}
    if planned.cloud:
        found["speed-memory"] = _speed_memory(planned)
    shown = planned.answer.best or _nearest(planned)
    if shown:
        found["memory"] = _memory(planned, shown)
        found["time"] = _time(shown)
    if sum(bool(size.best) for size in planned.sizes) > 1:
        found["devices"] = _devices(planned)
    if any(size.best for size in planned.memory_sizes):
        found["sizes"] = _sizes(planned)
    return MappingProxyType(found)


def _nearest(planned: Planned) -> tuple[Expected, ...]:
    nearest = planned.answer.nearest
    return () if nearest is None else (nearest.expected,)


def _speed_memory(planned: Planned) -> Figure:
    peaks, rates, fits = zip(*planned.cloud, strict=True)
    points: Scatter = {
        "type": "scatter",
        "mode": "markers",
        "name": "plans",
        "x": [peak / GIB for peak in peaks],
        "y": list(rates),
        "marker": {
            "size": 5,
            "color": [round(share, 3) for share in fits],
            "colorscale": [(0, "#d55e00"), (0.5, "#e6c000"), (1, "#3f9fdc")],
            "cmin": 0,
            "cmax": 1,
            "opacity": 0.6,
            "colorbar": {
                "title": {"text": "P(fits)", "side": "right"},
                "thickness": 10,
                "len": 0.7,
            },
        },
        "hovertemplate": "%{y:.3g} samples/s<br>%{x:.3g} GiB<extra></extra>",
    }
    farthest = min(max(peaks), _FAR * max(planned.limit_bytes, min(peaks)))
    farthest = max(farthest, 1.2 * planned.limit_bytes)
    layout: Layout = {
        "height": 460,
        "xaxis": {
            "title": {"text": "peak memory of a device, GiB"},
            **logarithmic(0.9 * min(*peaks, planned.line_bytes) / GIB, farthest / GIB),
        },
        "yaxis": {"title": {"text": "samples/s"}, "rangemode": "tozero"},
        "legend": LEGEND,
        "showlegend": True,
        "shapes": _lines(planned),
    }
    return {"data": [points, *_front(planned), *_star(planned)], "layout": layout}


def _lines(planned: Planned) -> list[Shape]:
    return memory_lines(line_bytes=planned.line_bytes, limit_bytes=planned.limit_bytes)


def _front(planned: Planned) -> list[Scatter]:
    if not planned.front:
        return []
    return [
        {
            "type": "scatter",
            "mode": "lines+markers",
            "name": "front",
            "x": [told.peak_bytes.value / GIB for told in planned.front],
            "y": [told.samples_per_second.value for told in planned.front],
            "line": {"color": BEST_COLOUR, "width": 2, "shape": "hv"},
            "marker": {"size": 7},
            "text": [hover(told) for told in planned.front],
            "hovertemplate": "%{text}<extra></extra>",
        }
    ]


def _star(planned: Planned) -> list[Scatter]:
    best = planned.best
    if best is None:
        return []
    return [
        {
            "type": "scatter",
            "mode": "markers",
            "name": "recommended",
            "x": [best.peak_bytes.value / GIB],
            "y": [best.samples_per_second.value],
            "marker": {"symbol": "star", "size": 16, "color": BEST_COLOUR},
            "text": [hover(best)],
            "hovertemplate": "%{text}<extra></extra>",
        }
    ]


def _memory(planned: Planned, shown: Sequence[Expected]) -> Figure:
    parts = [dict(told.held_bytes) for told in shown]
    data = [
        part_of_bars(
            category_words(name),
            colour,
            _labels(shown),
            [part[name] / GIB for part in parts],
            "GiB",
        )
        for name, colour in zip(CATEGORIES, COLOURS, strict=False)
        if any(part[name] for part in parts)
    ]
    layout: Layout = {**stacked("GiB of one device", len(shown)), "shapes": _lines(planned)}
    return {"data": data, "layout": layout}


def _time(shown: Sequence[Expected]) -> Figure:
    parts = [dict(told.seconds) for told in shown]
    data = [
        part_of_bars(term_words(name), colour, _labels(shown), [part[name] for part in parts], "s")
        for name, colour in zip(TERMS, COLOURS, strict=False)
        if any(part[name] > 0.001 * sum(part.values()) for part in parts)
    ]
    return {"data": data, "layout": stacked("seconds of a step", len(shown))}


def _labels(shown: Sequence[Expected]) -> list[str]:
    """Numbers plans as the table of the best plans does."""
    return [f"plan {number}" for number in range(1, len(shown) + 1)]


def _devices(planned: Planned) -> Figure:
    able = [size for size in planned.sizes if size.best]
    rates = [size.best[0].samples_per_second for size in able]
    ranks = [size.ranks for size in able]
    per_device = rates[0].value / ranks[0]
    data: list[Trace] = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": "in proportion",
            "x": ranks,
            "y": [per_device * count for count in ranks],
            "line": {"dash": "dot", "color": "#999999"},
            "hoverinfo": "skip",
        },
        {
            "type": "scatter",
            "mode": "lines+markers",
            "name": "best plan",
            "x": ranks,
            "y": [rate.value for rate in rates],
            "error_y": {
                "type": "data",
                "symmetric": False,
                "array": [rate.high - rate.value for rate in rates],
                "arrayminus": [rate.value - rate.low for rate in rates],
            },
            "line": {"color": BEST_COLOUR},
            "text": [hover(size.best[0]) for size in able],
            "hovertemplate": "%{x} devices<br>%{text}<extra></extra>",
        },
    ]
    layout: Layout = {
        "height": 380,
        "xaxis": {"title": {"text": "devices"}, "type": "log", "tickvals": ranks},
        "yaxis": {
            "title": {"text": "samples/s"},
            **logarithmic(
                0.8 * min(rate.low for rate in rates), 1.25 * max(rate.high for rate in rates)
            ),
        },
        "legend": LEGEND,
        "showlegend": True,
    }
    return {"data": data, "layout": layout}


def _sizes(planned: Planned) -> Figure:
    able = [(size, size.best) for size in planned.memory_sizes if size.best]
    data: list[Trace] = [
        {
            "type": "bar",
            "x": [gib(size.limit_bytes) for size, _ in able],
            "y": [best.samples_per_second.value for _, best in able],
            "marker": {"color": "#0072b2"},
            "text": [hover(best) for _, best in able],
            "textposition": "none",
            "hovertemplate": "%{text}<extra></extra>",
        }
    ]
    layout: Layout = {
        "height": 340,
        "xaxis": {"title": {"text": "GiB a device"}, "type": "category"},
        "yaxis": {"title": {"text": "samples/s of the best plan"}},
    }
    return {"data": data, "layout": layout}
