"""Charts in which each trial is a point."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from orchestrator.core.objective import front
from orchestrator.forecast.planner import cloud
from orchestrator.report.charts import (
    BEST_COLOUR,
    LEGEND,
    Figure,
    Layout,
    Scatter,
    hover_text,
    memory_lines,
)
from orchestrator.report_page.told import Told, memory_of
from orchestrator.view.plan_words import plan_words
from orchestrator.view.words import KIND_WORDS, record_words
from search_spaces.outcome import Measured, OutOfMemory
from search_spaces.record import Record
from search_spaces.spec.schema import GIB

_ENDS = {  # colour and sign of each way in which a trial ends
    "measured": ("#0072b2", "circle"),
    "out_of_memory": ("#d55e00", "x"),
    "timed_out": ("#cc79a7", "triangle-up"),
    "crashed": ("#8c6d31", "square-x"),
    "refused": ("#999999", "diamond"),
    "diverged": ("#c9b400", "triangle-down"),
    "cancelled": ("#999999", "circle-open"),
}
_UNTRIED_COLOUR = "#9aa5b1"


def _hover(record: Record) -> str:
    plan = f"trial {record.number}: {plan_words(record.plan)}"
    return hover_text(plan, record_words(record))


def _points(
    name: str, kind: str, records: Sequence[Record], xs: list[float], ys: list[float]
) -> Scatter:
    colour, symbol = _ENDS[kind]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "x": xs,
        "y": ys,
        "marker": {"color": colour, "symbol": symbol, "size": 9},
        "text": [_hover(record) for record in records],
        "hovertemplate": "%{text}<extra></extra>",
        "cliponaxis": False,  # what lies on the bottom is seen as a whole
    }


def trials_chart(told: Told) -> Figure:
    """Speed over memory; what has no speed lies at what was forecast, or at the bottom."""
    state = told.state
    data: list[Scatter] = []
    if told.ground is not None:
        points = cloud(told.ground.sized)
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": "forecast",
                "x": [peak / GIB for peak, _, _ in points],
                "y": [rate for _, rate, _ in points],
                "marker": {"color": _UNTRIED_COLOUR, "size": 4, "opacity": 0.45},
                "hovertemplate": "%{y:.3g} samples/s, %{x:.3g} GiB by forecast<extra></extra>",
            }
        )
    for kind, words in KIND_WORDS.items():
        ended = [record for record in state.records if record.outcome.kind == kind]
        placed = [(record, _place(record)) for record in ended]
        known = [(record, place) for record, place in placed if place is not None]
        if known:
            records = [record for record, _ in known]
            xs, ys = [x for _, (x, _) in known], [y for _, (_, y) in known]
            data.append(_points(words, kind, records, xs, ys))
    edge = front(state.records, state.goal, ("samples_per_second", "headroom"))[::-1]
    if len(edge) > 1:
        data.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": "front",
                "x": [memory_of(record).peak_bytes / GIB for record in edge],
                "y": [_rate(record) for record in edge],
                "line": {"color": BEST_COLOUR, "width": 2, "shape": "hv"},
                "hoverinfo": "skip",
            }
        )
    data += _marked(told)
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
    return {"data": data, "layout": layout}


def _place(record: Record) -> tuple[float, float] | None:
    """Peak in GiB and speed; what ran out of memory lies on the limit."""
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


def _marked(told: Told) -> Iterable[Scatter]:
    named = (
        ("the answer", told.best, "star", BEST_COLOUR),
        ("start", told.baseline, "diamond", "#e69f00"),
    )
    for name, record, symbol, colour in named:
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


def forecasts_chart(records: Sequence[Record]) -> Figure:
    """Measured over forecast speed; what was not measured lies at the bottom."""
    data: list[Scatter] = []
    told = [record for record in records if record.forecast is not None]
    for kind, words in KIND_WORDS.items():
        ended = [record for record in told if record.outcome.kind == kind]
        if ended:
            xs = [record.forecast.samples_per_second.value for record in ended if record.forecast]
            ys = [_rate(record) if kind == "measured" else 0.0 for record in ended]
            data.append(_points(words, kind, ended, xs, ys))
    most = max(max((*points["x"], *points["y"])) for points in data)
    data.append(
        {
            "type": "scatter",
            "mode": "lines",
            "name": "as forecast",
            "x": [0, most],
            "y": [0, most],
            "line": {"dash": "dot", "color": "#999999"},
            "hoverinfo": "skip",
        }
    )
    layout: Layout = {
        "height": 420,
        "xaxis": {"title": {"text": "forecast samples/s"}, "rangemode": "tozero"},
        "yaxis": {"title": {"text": "measured samples/s"}, "rangemode": "tozero"},
        "legend": LEGEND,
        "showlegend": True,
    }
    return {"data": data, "layout": layout}


def progress_chart(told: Told) -> Figure:
    """Speed over the minutes of the search, and the best so far of what is feasible."""
    state = told.state
    began = min((record.started_at for record in state.records), default=0.0)

    def minutes(record: Record) -> float:
        return round((record.ended_at - began) / 60, 3)

    ended = sorted(state.records, key=lambda record: record.ended_at)
    data: list[Scatter] = []
    xs: list[float] = []
    ys: list[float] = []
    best = 0.0
    for record in ended:
        if state.goal.feasible(record) and _rate(record) > best:
            best = _rate(record)
            xs.append(minutes(record))
            ys.append(best)
    if xs:
        data.append(
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
            data.append(
                _points(words, kind, of_kind, [minutes(record) for record in of_kind], rates)
            )
    layout: Layout = {
        "height": 360,
        "xaxis": {"title": {"text": "minutes since the first trial began"}, "rangemode": "tozero"},
        "yaxis": {"title": {"text": "samples/s"}, "rangemode": "tozero"},
        "legend": LEGEND,
        "showlegend": True,
    }
    return {"data": data, "layout": layout}
