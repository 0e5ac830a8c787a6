"""Charts in which each trial is a point."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from orchestrator.core.pareto import pareto_front
from orchestrator.explain.context import without_accelerator
from orchestrator.explain.effects import KnobEffect
from orchestrator.forecast.planner import cloud
from orchestrator.report.charts import (
    BEST_COLOUR,
    COLOURS,
    LEGEND,
    LINE_COLOUR,
    Bar,
    Dash,
    Figure,
    Layout,
    Scatter,
    hover_text,
    memory_lines,
    part_of_bars,
    stacked,
)
from orchestrator.report.labels import KIND_WORDS, plan_words, record_words
from orchestrator.report.page_data import LossCurves, ReportData, ablation, loss_curves, memory_of
from orchestrator.report.plan_text import term_words
from orchestrator.report.sweep_tables import anatomy_rows
from search_spaces.costs.time import TERMS
from search_spaces.spec.schema import GIB
from search_spaces.trial import Measured, OutOfMemory, Record

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
_KNOWN = {
    "measured": "#0072b2",
    "forecast": "#8fbbd9",
    "forecast, not sure to fit": "#e9c9a8",
}
_SHOWN = 4  # plans in charts of what one is made of


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


def trials_chart(told: ReportData) -> Figure:
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
    edge = pareto_front(state.records, state.goal, ("samples_per_second", "headroom"))[::-1]
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


def _marked(told: ReportData) -> Iterable[Scatter]:
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


def progress_chart(told: ReportData) -> Figure:
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


def change_words(worth: KnobEffect) -> str:
    """`micro_batch 8 → 4`."""
    change = worth.change
    return f"{change.knob} {change.ours} → {change.theirs}"


def lost(worth: KnobEffect) -> float:
    """By what share the changed plan is faster than the answer: -0.25 where a quarter is lost."""
    assert worth.ratio is not None
    return 1 / worth.ratio.value - 1


def _known_by(worth: KnobEffect) -> str:
    if worth.trial is not None:
        return "measured"
    return "forecast, not sure to fit" if worth.keeps is False else "forecast"


def knobs_chart(knob_effects: Sequence[KnobEffect]) -> Figure:
    """Speed gained or lost where one knob alone is changed."""
    data: list[Bar] = []
    names = [change_words(worth) for worth in knob_effects]
    for name, colour in _KNOWN.items():
        mine = [worth for worth in knob_effects if _known_by(worth) == name]
        if mine:
            data.append(
                {
                    "type": "bar",
                    "orientation": "h",
                    "name": name,
                    "x": [round(100 * lost(worth), 2) for worth in mine],
                    "y": [change_words(worth) for worth in mine],
                    "marker": {"color": colour},
                    "hovertemplate": "%{y}: %{x:+.1f} % samples/s<extra>" + name + "</extra>",
                }
            )
    layout = stacked("change of samples/s, %", len(knob_effects))
    layout["yaxis"] |= {"categoryorder": "array", "categoryarray": names}
    return {"data": data, "layout": layout}


def _labels(shown: Sequence[Record]) -> list[str]:
    return [f"trial {record.number}" for record in shown]


def memory_chart(told: ReportData, shown: Sequence[Record]) -> Figure:
    """What the fullest rank held, by category, against the line and the limit."""
    parts = [dict(anatomy_rows(memory_of(record).anatomy)) for record in shown]
    names = dict.fromkeys(name for part in parts for name in part)
    outside = [_counted_outside(record) for record in shown]
    labels = _labels(shown)
    data = [
        part_of_bars(name, colour, labels, [part.get(name, 0) / GIB for part in parts], "GiB")
        for name, colour in zip(names, COLOURS, strict=False)
    ]
    if any(outside):
        sizes = [size / GIB for size in outside]
        data.append(part_of_bars("outside the allocator", "#999999", labels, sizes, "GiB"))
    layout = stacked("GiB of the fullest rank", len(shown))
    if limit := told.state.memory_limit_bytes:
        line = limit * (1 - told.state.spec.objective.headroom)
        layout["shapes"] = memory_lines(line_bytes=line, limit_bytes=limit)
    return {"data": data, "layout": layout}


def _counted_outside(record: Record) -> int:
    """What lies outside the allocator, where the limit counts it: not on CPU."""
    memory = memory_of(record)
    return memory.anatomy.outside if memory.peak_bytes > memory.reserved_bytes else 0


def time_chart(shown: Sequence[Record]) -> Figure:
    """Measured seconds of a step by phase."""
    data: list[Bar] = []
    for name, colour in zip(("data", "forward", "backward", "optimizer"), COLOURS, strict=False):
        seconds = [
            getattr(record.outcome.phases, name)
            for record in shown
            if isinstance(record.outcome, Measured)
        ]
        data.append(part_of_bars(name, colour, _labels(shown), seconds, "s"))
    layout = stacked("seconds of an optimizer step, measured", len(shown))
    return {"data": data, "layout": layout}


def terms_chart(told: ReportData, shown: Sequence[Record]) -> Figure:
    """The forecast's terms, corrected by the trials, of plans that it knows."""
    ground, best = told.ground, told.best
    assert ground is not None
    assert best is not None
    kept = [
        (record, expected)
        for record in shown
        if record.plan.accelerator == best.plan.accelerator
        and (expected := ground.expected(without_accelerator(record.plan))) is not None
    ]
    parts = [dict(expected.seconds) for _, expected in kept]
    labels = _labels([record for record, _ in kept])
    data = [
        part_of_bars(term_words(name), colour, labels, [part[name] for part in parts], "s")
        for name, colour in zip(TERMS, COLOURS, strict=False)
        if any(part[name] > 0.001 * sum(part.values()) for part in parts)
    ]
    layout = stacked("seconds of an optimizer step, forecast", len(kept))
    return {"data": data, "layout": layout}


def losses_chart(curves: LossCurves) -> Figure:
    """The validation's losses on those of the reference."""
    reference = f"trial {curves.reference}, the reference"
    layout: Layout = {
        "height": 340,
        "xaxis": {"title": {"text": "optimizer step"}, "dtick": 1},
        "yaxis": {"title": {"text": "loss"}},
        "legend": LEGEND,
        "showlegend": True,
    }
    return {
        "data": [
            _losses(reference, curves.theirs, LINE_COLOUR, "solid", 11),
            _losses("the answer, in its validation", curves.ours, BEST_COLOUR, "dot", 6),
        ],
        "layout": layout,
    }


def _losses(name: str, losses: Sequence[float], colour: str, dash: Dash, size: int) -> Scatter:
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": name,
        "x": list(range(1, len(losses) + 1)),
        "y": losses,
        "line": {"color": colour, "dash": dash},
        "marker": {"size": size},
    }


def figures(told: ReportData) -> Mapping[str, Figure]:
    """Charts by the name of the place where they are drawn; those without data are left out."""
    found: dict[str, Figure] = {}
    state = told.state
    if any(isinstance(record.outcome, Measured | OutOfMemory) for record in state.records):
        found["trials"] = trials_chart(told)
    if any(record.forecast is not None for record in state.records):
        found["forecasts"] = forecasts_chart(state.records)
    found["progress"] = progress_chart(told)
    if worths := [worth for worth in ablation(told) if worth.ratio is not None]:
        found["knobs"] = knobs_chart(worths)
    if shown := shown_plans(told):
        found["memory"] = memory_chart(told, shown)
        found["time"] = time_chart(shown)
        if told.ground is not None and told.best is not None:
            found["terms"] = terms_chart(told, shown)
    if (curves := loss_curves(state)) is not None:
        found["losses"] = losses_chart(curves)
    return MappingProxyType({name: figure for name, figure in found.items() if figure["data"]})


def shown_plans(told: ReportData) -> list[Record]:
    """The answer, what one would start with, and some that are equal, as far as measured."""
    first = [told.best, told.baseline, *told.state.equals]
    kept = {record.number: record for record in first if record is not None}
    return list(kept.values())[:_SHOWN]
