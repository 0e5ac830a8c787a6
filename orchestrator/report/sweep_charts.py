"""Charts of a sweep: trials, progress, memory and step time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from orchestrator.core.objective import memory_of
from orchestrator.core.pareto import pareto_front
from orchestrator.core.records import Record
from orchestrator.core.state import SweepState
from orchestrator.forecast.planner import scatter_points
from orchestrator.report.charts import (
    BEST_COLOUR,
    COLOURS,
    LEGEND,
    Bar,
    Figure,
    Layout,
    Scatter,
    hover_text,
    memory_lines,
    part_of_bars,
    stacked,
)
from orchestrator.report.labels import KIND_WORDS, plan_words, record_words
from orchestrator.report.page_data import ReportData
from orchestrator.report.sweep_tables import anatomy_rows
from search_spaces.spec.schema import GIB
from search_spaces.trial import Measured, OutOfMemory

_STYLES = {  # colour and symbol of each outcome
    "measured": ("#0072b2", "circle"),
    "out_of_memory": ("#d55e00", "x"),
    "timed_out": ("#cc79a7", "triangle-up"),
    "crashed": ("#8c6d31", "square-x"),
    "refused": ("#999999", "diamond"),
    "diverged": ("#c9b400", "triangle-down"),
    "cancelled": ("#999999", "circle-open"),
}
_UNTRIED_COLOUR = "#9aa5b1"
_MOST_PLANS = 4  # in the charts of memory and step time


def _hover(record: Record) -> str:
    plan = f"trial {record.number}: {plan_words(record.plan)}"
    return hover_text(plan, record_words(record))


def _points(
    name: str, kind: str, records: Sequence[Record], xs: list[float], ys: list[float]
) -> Scatter:
    colour, symbol = _STYLES[kind]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "x": xs,
        "y": ys,
        "marker": {"color": colour, "symbol": symbol, "size": 9},
        "text": [_hover(record) for record in records],
        "hovertemplate": "%{text}<extra></extra>",
        "cliponaxis": False,  # draws points on the axis whole
    }


def trials_chart(data: ReportData) -> Figure:
    """Plots speed over memory, with forecast plans and the Pareto front.

    A trial without a measured speed lies at its forecast speed, or at the bottom without one.
    """
    state = data.state
    traces = [*_forecast_points(data)]
    for kind, words in KIND_WORDS.items():
        ended = [record for record in state.records if record.outcome.kind == kind]
        placed = [(record, place) for record in ended if (place := _place(record)) is not None]
        if placed:
            records = [record for record, _ in placed]
            xs, ys = [x for _, (x, _) in placed], [y for _, (_, y) in placed]
            traces.append(_points(words, kind, records, xs, ys))
    traces += _front(state)
    traces += _highlights(data)
    layout: Layout = {
        "height": 460,
        "xaxis": {"title": {"text": "peak memory of the fullest rank, GiB"}, "rangemode": "tozero"},
        "yaxis": {"title": {"text": "samples/s"}, "rangemode": "tozero"},
        "legend": LEGEND,
        "showlegend": True,
    }
    if limit := state.memory_limit_bytes:
        line = limit * (1 - state.spec.objective.headroom)
        layout["shapes"] = memory_lines(line_bytes=line, limit_bytes=limit)
    return {"data": traces, "layout": layout}


def _forecast_points(data: ReportData) -> Iterator[Scatter]:
    if data.context is not None:
        points = scatter_points(data.context.sized)
        yield {
            "type": "scatter",
            "mode": "markers",
            "name": "forecast",
            "x": [peak / GIB for peak, _, _ in points],
            "y": [rate for _, rate, _ in points],
            "marker": {"color": _UNTRIED_COLOUR, "size": 4, "opacity": 0.45},
            "hovertemplate": "forecast: %{y:.3g} samples/s, %{x:.3g} GiB<extra></extra>",
        }


def _front(state: SweepState) -> Iterator[Scatter]:
    front = pareto_front(state.by_plan, state.objective, ("samples_per_second", "headroom"))[::-1]
    if len(front) > 1:
        yield {
            "type": "scatter",
            "mode": "lines",
            "name": "Pareto front",
            "x": [memory_of(record).peak_bytes / GIB for record in front],
            "y": [_rate(record) for record in front],
            "line": {"color": BEST_COLOUR, "width": 2, "shape": "hv"},
            "hoverinfo": "skip",
        }


def _place(record: Record) -> tuple[float, float] | None:
    """Returns peak in GiB and speed; a trial that ran out of memory lies at the limit."""
    outcome, forecast = record.outcome, record.forecast
    if isinstance(outcome, Measured):
        return outcome.memory.peak_bytes / GIB, outcome.samples_per_second.value
    rate = forecast.samples_per_second.value if forecast is not None else 0.0
    if isinstance(outcome, OutOfMemory) and outcome.limit_bytes:
        return outcome.limit_bytes / GIB, rate
    return None if forecast is None else (forecast.peak_bytes.value / GIB, rate)


def _rate(record: Record) -> float:
    assert isinstance(record.outcome, Measured)
    return record.outcome.samples_per_second.value


def _highlights(data: ReportData) -> Iterator[Scatter]:
    highlights = (
        ("best", data.best, "star", BEST_COLOUR),
        ("baseline", data.baseline, "diamond", "#e69f00"),
    )
    for name, record, symbol, colour in highlights:
        if record is not None:
            yield {
                "type": "scatter",
                "mode": "markers",
                "name": name,
                "x": [memory_of(record).peak_bytes / GIB],
                "y": [_rate(record)],
                "marker": {"symbol": symbol, "size": 16, "color": colour},
                "text": [_hover(record)],
                "hovertemplate": "%{text}<extra></extra>",
            }


def progress_chart(data: ReportData) -> Figure:
    """Plots speed over the minutes of the search, with the incumbent."""
    state = data.state
    start = min((record.started_at for record in state.records), default=0.0)

    def minutes(record: Record) -> float:
        return round((record.ended_at - start) / 60, 3)

    ended = sorted(state.records, key=lambda record: record.ended_at)
    traces: list[Scatter] = []
    xs: list[float] = []
    ys: list[float] = []
    best = 0.0
    for record in ended:
        if state.objective.feasible(record) and _rate(record) > best:
            best = _rate(record)
            xs.append(minutes(record))
            ys.append(best)
    if xs:
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": "best so far",
                "x": [*xs, minutes(ended[-1])],
                "y": [*ys, best],
                "line": {"color": BEST_COLOUR, "width": 2, "shape": "hv"},
                "hoverinfo": "skip",
            }
        )
    for kind, words in KIND_WORDS.items():
        of_kind = [record for record in ended if record.outcome.kind == kind]
        if of_kind:
            rates = [_rate(record) if kind == "measured" else 0.0 for record in of_kind]
            times = [minutes(record) for record in of_kind]
            traces.append(_points(words, kind, of_kind, times, rates))
    layout: Layout = {
        "height": 360,
        "xaxis": {
            "title": {"text": "minutes since the start of the first trial"},
            "rangemode": "tozero",
        },
        "yaxis": {"title": {"text": "samples/s"}, "rangemode": "tozero"},
        "legend": LEGEND,
        "showlegend": True,
    }
    return {"data": traces, "layout": layout}


def _labels(records: Sequence[Record]) -> list[str]:
    return [f"trial {record.number}" for record in records]


def memory_chart(data: ReportData, records: Sequence[Record]) -> Figure:
    """Plots the peak of the fullest rank by category, with usable memory and the limit."""
    parts = [dict(anatomy_rows(memory_of(record).anatomy)) for record in records]
    names = dict.fromkeys(name for part in parts for name in part)
    outside = [_counted_outside(record) for record in records]
    labels = _labels(records)
    bars = [
        part_of_bars(name, colour, labels, [part.get(name, 0) / GIB for part in parts], "GiB")
        for name, colour in zip(names, COLOURS, strict=False)
    ]
    if any(outside):
        sizes = [size / GIB for size in outside]
        bars.append(part_of_bars("outside the allocator", "#999999", labels, sizes, "GiB"))
    layout = stacked("peak memory of the fullest rank, GiB", len(records))
    if limit := data.state.memory_limit_bytes:
        line = limit * (1 - data.state.spec.objective.headroom)
        layout["shapes"] = memory_lines(line_bytes=line, limit_bytes=limit)
    return {"data": bars, "layout": layout}


def _counted_outside(record: Record) -> int:
    # on CPU the limit ignores these bytes
    memory = memory_of(record)
    return memory.anatomy.outside if memory.peak_bytes > memory.reserved_bytes else 0


def time_chart(records: Sequence[Record]) -> Figure:
    """Plots the measured time of a step by phase."""
    bars: list[Bar] = []
    for name, colour in zip(("data", "forward", "backward", "optimizer"), COLOURS, strict=False):
        seconds = [
            getattr(record.outcome.phases, name)
            for record in records
            if isinstance(record.outcome, Measured)
        ]
        bars.append(part_of_bars(name, colour, _labels(records), seconds, "s"))
    layout = stacked("measured seconds per optimizer step", len(records))
    return {"data": bars, "layout": layout}


def figures(data: ReportData) -> Mapping[str, Figure]:
    """Makes the charts that have data, by the name of their place in the template."""
    charts: dict[str, Figure] = {}
    state = data.state
    if any(isinstance(record.outcome, Measured | OutOfMemory) for record in state.records):
        charts["trials"] = trials_chart(data)
    charts["progress"] = progress_chart(data)
    if shown := shown_plans(data):
        charts["memory"] = memory_chart(data, shown)
        charts["time"] = time_chart(shown)
    return MappingProxyType({name: figure for name, figure in charts.items() if figure["data"]})


def shown_plans(data: ReportData) -> list[Record]:
    """Returns the measured ones of the best plan, the baseline and the first equals."""
    records = [data.best, data.baseline, *data.state.ties]
    by_number = {record.number: record for record in records if record is not None}
    return list(by_number.values())[:_MOST_PLANS]
