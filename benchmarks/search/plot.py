"""Regret over trials, as a page."""

from __future__ import annotations

from pathlib import Path

import plotly.graph_objects as go

from benchmarks.search.run import Results

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
_DASHES = {"gp, 3 at random first": "dot", "grid in random order": "dot"}


def draw(results: Results, file: Path) -> None:
    """Writes the page."""
    file.write_text(figure(results).to_html(include_plotlyjs=True, full_html=True), "utf-8")


def figure(results: Results) -> go.Figure:
    """A line for each rival: mean regret over the seeds, median over surfaces, in per cent."""
    drawn = go.Figure()
    for rival in results.rivals:
        curve = 100 * results.curve(rival)
        drawn.add_scatter(
            x=[*range(1, len(curve) + 1)],
            y=curve.clip(_FLOOR),
            name=rival,
            mode="lines",
            line={
                "color": _COLOURS.get(rival, "#5c3d99"),
                "dash": _DASHES.get(rival, "solid" if rival in _COLOURS else "dash"),
                "width": _OURS if rival == "plimsoll" else _OTHERS,
            },
            customdata=curve,
            hovertemplate="%{x} trials: %{customdata:.1f} %",
        )
    marks = [0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100]
    drawn.update_yaxes(
        type="log",
        range=[-1, 2.02],
        tickvals=marks,
        ticktext=[f"{mark:g} %" for mark in marks],
        title="slower than the best plan",
    )
    drawn.update_xaxes(title="trials", range=[0.5, 40.5], tickvals=[1, 5, 10, 20, 30, 40])
    drawn.add_hline(y=2, line={"color": "#5c6773", "width": 1, "dash": "dot"})
    drawn.update_layout(
        template="plotly_white",
        title=f"Regret, median over {_counted(len(results.surfaces), 'surface')},"
        f" {_counted(results.seeds, 'seed')} each",
        font={"family": "system-ui, sans-serif", "size": 14},
        legend={"orientation": "v"},
        margin={"l": 70, "r": 20, "t": 60, "b": 50},
    )
    return drawn


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
