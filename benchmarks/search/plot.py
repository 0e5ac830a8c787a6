"""Regret over trials, as a page."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from benchmarks.search.run import Results
from orchestrator.report.charts import LEGEND, Dash, Figure, Layout, Scatter
from orchestrator.report.html import render_page

_SPOILT = "#5c3d99"
_FLOOR = 0.1  # %: less regret is drawn there
_OURS, _OTHERS = 3.5, 1.8  # widths of lines
_COLOURS = {  # Okabe & Ito: told apart by all eyes
    "plimsoll": "#d55e00",
    "plimsoll without forecasts": "#e69f00",
    "tpe": "#56b4e9",
    "gp": "#0072b2",
    "gp, 3 at random first": "#0072b2",
    "random": "#999999",
    "grid in random order": "#999999",
    "largest micro-batch first": "#009e73",
    "deepspeed autotuner": "#cc79a7",
}
_DASHES: Mapping[str, Dash] = {
    "gp, 3 at random first": "dot",
    "grid in random order": "dot",
    "plimsoll, times shuffled": "solid",
    "plimsoll, memory 30 % low": "dash",
    "plimsoll, memory 30 % high": "dot",
}


def draw(results: Results, file: Path) -> None:
    """Writes the page."""
    file.write_text(regret_page(results), "utf-8")


def regret_page(results: Results) -> str:
    """The page: one chart."""
    return render_page(
        "chart.jinja",
        title=f"Regret, median over {_counted(len(results.surfaces), 'surface')},"
        f" {_counted(results.seeds, 'seed')} each",
        caption="The best plan found so far against the best one there is.",
        figures={"regret": figure(results)},
    )


def figure(results: Results) -> Figure:
    """A line for each competitor: mean regret over the seeds, median over surfaces, in per cent."""
    marks = [0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100]
    layout: Layout = {
        "height": 720,
        "xaxis": {
            "title": {"text": "trials"},
            "range": (0.5, 40.5),
            "tickvals": [1, 5, 10, 20, 30, 40],
        },
        "yaxis": {
            "title": {"text": "slower than the best plan"},
            "type": "log",
            "range": (-1, 2.02),
            "tickvals": marks,
            "ticktext": ["none", *(f"{mark:g} %" for mark in marks[1:])],
        },
        "legend": LEGEND,
        "showlegend": True,
        "shapes": [
            {
                "type": "line",
                "xref": "paper",
                "x0": 0,
                "x1": 1,
                "y0": 2,
                "y1": 2,
                "line": {"color": "#5c6773", "width": 1, "dash": "dot"},
            }
        ],
    }
    return {
        "data": [_line(results, competitor) for competitor in results.competitors],
        "layout": layout,
    }


def _line(results: Results, incumbent: str) -> Scatter:
    curve = 100 * results.curve(incumbent)
    return {
        "type": "scatter",
        "mode": "lines",
        "name": incumbent,
        "x": list(range(1, len(curve) + 1)),
        "y": curve.clip(_FLOOR).tolist(),
        "line": {
            "color": _COLOURS.get(incumbent, _SPOILT),
            "dash": _DASHES.get(incumbent, "solid"),
            "width": _OURS if incumbent == "plimsoll" else _OTHERS,
        },
        "customdata": curve.tolist(),
        "hovertemplate": "%{x} trials: %{customdata:.1f} %",
    }


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
