"""Charts of the answer and of plans beside it."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.explain.context import anywhere
from orchestrator.explain.effects import Worth
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
    memory_lines,
    part_of_bars,
    stacked,
)
from orchestrator.report.plan_text import term_words
from orchestrator.report.tables import anatomy_rows
from orchestrator.report_page.told import LossCurves, Told, memory_of
from search_spaces.forecast.seconds import TERMS
from search_spaces.outcome import Measured
from search_spaces.record import Record
from search_spaces.spec.schema import GIB


def change_words(worth: Worth) -> str:
    """`micro_batch 8 → 4`."""
    change = worth.change
    return f"{change.knob} {change.ours} → {change.theirs}"


def lost(worth: Worth) -> float:
    """By what share the changed plan is faster than the answer: -0.25 where a quarter is lost."""
    assert worth.ratio is not None
    return 1 / worth.ratio.value - 1


_KNOWN = {
    "measured": "#0072b2",
    "forecast": "#8fbbd9",
    "forecast, not sure to fit": "#e9c9a8",
}


def _known_by(worth: Worth) -> str:
    if worth.trial is not None:
        return "measured"
    return "forecast, not sure to fit" if worth.keeps is False else "forecast"


def knobs_chart(worths: Sequence[Worth]) -> Figure:
    """Speed gained or lost where one knob alone is changed."""
    data: list[Bar] = []
    names = [change_words(worth) for worth in worths]
    for name, colour in _KNOWN.items():
        mine = [worth for worth in worths if _known_by(worth) == name]
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
    layout = stacked("change of samples/s, %", len(worths))
    layout["yaxis"] |= {"categoryorder": "array", "categoryarray": names}
    return {"data": data, "layout": layout}


def _labels(shown: Sequence[Record]) -> list[str]:
    return [f"trial {record.number}" for record in shown]


def memory_chart(told: Told, shown: Sequence[Record]) -> Figure:
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


def terms_chart(told: Told, shown: Sequence[Record]) -> Figure:
    """The forecast's terms, corrected by the trials, of plans that it knows."""
    ground, best = told.ground, told.best
    assert ground is not None
    assert best is not None
    kept = [
        (record, expected)
        for record in shown
        if record.plan.accelerator == best.plan.accelerator
        and (expected := ground.expected(anywhere(record.plan))) is not None
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
    """The proof's losses on those of the reference."""
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
            _losses("the answer, in its proof", curves.ours, BEST_COLOUR, "dot", 6),
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
