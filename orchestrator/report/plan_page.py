"""The page of a planning report: the best plan first, then charts and tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from orchestrator.forecast.planner import PlanningReport
from orchestrator.forecast.table import ForecastRow
from orchestrator.report.charts import (
    BEST_COLOUR,
    COLOURS,
    LEGEND,
    Figure,
    Layout,
    Scatter,
    Shape,
    hover_text,
    logarithmic,
    memory_lines,
    part_of_bars,
    stacked,
)
from orchestrator.report.format import gib, mfu_words
from orchestrator.report.html import Tile, render_page
from orchestrator.report.plan_tables import counts_table, plans_table
from orchestrator.report.plan_text import (
    answer_sentence,
    category_words,
    common_words,
    devices,
    expected_words,
    interval,
    percent,
    planning_note_words,
    ruled_out_sentences,
    significant,
    term_words,
)
from orchestrator.report.understood import understood_table
from search_spaces.costs.memory import CATEGORIES
from search_spaces.costs.time import TERMS
from search_spaces.spec.schema import GIB

_FARTHEST = 10.0  # times the limit; the memory axis ends there


def hover(row: ForecastRow) -> str:
    """Returns the tooltip of a plan."""
    forecast, rate = row.forecast, row.forecast.samples_per_second
    return hover_text(
        expected_words(row),
        f"{significant(rate.value)} samples/s ({interval(rate)})",
        f"{gib(forecast.peak_bytes.value)} GiB, {percent(forecast.fits)} likely to fit",
    )


def figures(report: PlanningReport) -> Mapping[str, Figure]:
    """Makes the charts that have data, by the name of their place in the template."""
    charts: dict[str, Figure] = {}
    if report.scatter_points:
        charts["speed-memory"] = _speed_memory(report)
    rows = report.recommendation.best or tuple(filter(None, (report.recommendation.nearest,)))
    if rows:
        charts["memory"] = _memory(report, rows)
        charts["time"] = _time(rows)
    return MappingProxyType(charts)


def _speed_memory(report: PlanningReport) -> Figure:
    peaks, rates, fits = zip(*report.scatter_points, strict=True)
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
                "title": {"text": "probability to fit", "side": "right"},
                "thickness": 10,
                "len": 0.7,
            },
        },
        "hovertemplate": "%{y:.3g} samples/s<br>%{x:.3g} GiB<extra></extra>",
    }
    farthest = min(max(peaks), _FARTHEST * max(report.limit_bytes, min(peaks)))
    farthest = max(farthest, 1.2 * report.limit_bytes)
    layout: Layout = {
        "height": 460,
        "xaxis": {
            "title": {"text": "peak memory per device, GiB"},
            **logarithmic(0.9 * min(*peaks, report.line_bytes) / GIB, farthest / GIB),
        },
        "yaxis": {"title": {"text": "samples/s"}, "rangemode": "tozero"},
        "legend": LEGEND,
        "showlegend": True,
        "shapes": _lines(report),
    }
    return {"data": [points, *_front(report), *_star(report)], "layout": layout}


def _lines(report: PlanningReport) -> list[Shape]:
    return memory_lines(line_bytes=report.line_bytes, limit_bytes=report.limit_bytes)


def _front(report: PlanningReport) -> list[Scatter]:
    if not report.front:
        return []
    return [
        {
            "type": "scatter",
            "mode": "lines+markers",
            "name": "Pareto front",
            "x": [row.forecast.peak_bytes.value / GIB for row in report.front],
            "y": [row.forecast.samples_per_second.value for row in report.front],
            "line": {"color": BEST_COLOUR, "width": 2, "shape": "hv"},
            "marker": {"size": 7},
            "text": [hover(row) for row in report.front],
            "hovertemplate": "%{text}<extra></extra>",
        }
    ]


def _star(report: PlanningReport) -> list[Scatter]:
    best = report.best
    if best is None:
        return []
    return [
        {
            "type": "scatter",
            "mode": "markers",
            "name": "recommended",
            "x": [best.forecast.peak_bytes.value / GIB],
            "y": [best.forecast.samples_per_second.value],
            "marker": {"symbol": "star", "size": 16, "color": BEST_COLOUR},
            "text": [hover(best)],
            "hovertemplate": "%{text}<extra></extra>",
        }
    ]


def _memory(report: PlanningReport, rows: Sequence[ForecastRow]) -> Figure:
    parts = [dict(row.held_bytes) for row in rows]
    data = [
        part_of_bars(
            category_words(name),
            colour,
            _labels(rows),
            [part[name] / GIB for part in parts],
            "GiB",
        )
        for name, colour in zip(CATEGORIES, COLOURS, strict=False)
        if any(part[name] for part in parts)
    ]
    layout: Layout = {
        **stacked("peak memory per device, GiB", len(rows)),
        "shapes": _lines(report),
    }
    return {"data": data, "layout": layout}


def _time(rows: Sequence[ForecastRow]) -> Figure:
    parts = [dict(row.seconds) for row in rows]
    data = [
        part_of_bars(term_words(name), colour, _labels(rows), [part[name] for part in parts], "s")
        for name, colour in zip(TERMS, COLOURS, strict=False)
        if any(part[name] > 0.001 * sum(part.values()) for part in parts)
    ]
    return {"data": data, "layout": stacked("seconds per step", len(rows))}


def _labels(rows: Sequence[ForecastRow]) -> list[str]:
    return [f"plan {number}" for number in range(1, len(rows) + 1)]  # as in the table


def render_plan_page(report: PlanningReport) -> str:
    """Renders the HTML of the page, which includes all its scripts and styles."""
    recommendation = report.recommendation
    return render_page(
        "plan.jinja",
        title=f"{report.model} on {devices(report, recommendation.ranks)}",
        figures=figures(report),
        headline=answer_sentence(report),
        understood=understood_table(report.understood),
        warnings=tuple(map(planning_note_words, report.notes)),
        best_tiles=() if report.best is None else tuple(_tiles(report, report.best)),
        common=common_words([row.plan for row in recommendation.best]),
        best_plans=plans_table(recommendation.best),
        front=plans_table(report.front),
        front_common=common_words([row.plan for row in report.front]),
        counts=counts_table(report),
        ruled_out=tuple(ruled_out_sentences(recommendation)),
        footer=_footer(report),
    )


def _tiles(report: PlanningReport, best: ForecastRow) -> Iterator[Tile]:
    forecast, rate = best.forecast, best.forecast.samples_per_second
    usable = f"usable: {gib(report.line_bytes)} of {gib(report.limit_bytes)}"
    yield Tile(name="samples/s", value=significant(rate.value), detail=interval(rate))
    yield Tile(name="tokens/s/device", value=f"{best.tokens_per_second_per_device:,.0f}")
    yield Tile(name="MFU", value=mfu_words(best.mfu))
    yield Tile(name="peak memory, GiB", value=gib(forecast.peak_bytes.value), detail=usable)
    if forecast.host_bytes:
        detail = f"of {gib(report.node_host_bytes)} per node"
        yield Tile(name="host memory, GiB", value=gib(forecast.host_bytes), detail=detail)
    yield Tile(name="fits", value=percent(forecast.fits))
    yield Tile(name="limited by", value=term_words(forecast.limited_by))


def _footer(report: PlanningReport) -> str:
    return (
        f"{report.parameters:,} parameters, {report.tokens:,} tokens per sample,"
        f" {report.global_batch:,} samples per step; {report.forecast_plans:,} plans forecast in"
        f" {report.seconds:.1f} s; calibration: {report.provenance}"
    )
