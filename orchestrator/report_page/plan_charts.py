"""Charts of the answer and of plans beside it, as Plotly takes them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from orchestrator.explaining.changes import Worth
from orchestrator.explaining.ground import anywhere
from orchestrator.planning.words import term_words
from orchestrator.report.tables import anatomy_rows
from orchestrator.report_page.told import LossCurves, Told, memory_of
from orchestrator.view.charts import (
    BEST_COLOUR,
    COLOURS,
    LEGEND,
    LINE_COLOUR,
    Figure,
    bar,
    stacked,
    upright,
)
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
    data = []
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
    layout["yaxis"] |= {"title": {"text": ""}, "categoryorder": "array", "categoryarray": names}
    return {"data": data, "layout": layout}


def _named(data: Iterable[Figure], shown: Sequence[Record]) -> list[Figure]:
    return [{**one, "y": [f"trial {record.number}" for record in shown]} for one in data]


def memory_chart(told: Told, shown: Sequence[Record]) -> Figure:
    """What the fullest rank held, by category, against the line and the limit."""
    parts = [dict(anatomy_rows(memory_of(record).anatomy)) for record in shown]
    names = dict.fromkeys(name for part in parts for name in part)
    outside = [_counted_outside(record) for record in shown]
    data = [
        bar(name, colour, [part.get(name, 0) / GIB for part in parts], "GiB")
        for name, colour in zip(names, COLOURS, strict=False)
    ]
    if any(outside):
        data.append(bar("outside the allocator", "#999999", [one / GIB for one in outside], "GiB"))
    layout = stacked("GiB of the fullest rank", len(shown))
    layout["yaxis"]["title"] = {"text": ""}
    limit = told.state.memory_limit_bytes
    if limit:
        headroom = told.state.spec.objective.headroom
        layout["shapes"] = [upright(limit * (1 - headroom), "solid"), upright(limit, "dot")]
    return {"data": _named(data, shown), "layout": layout}


def _counted_outside(record: Record) -> int:
    """What lies outside the allocator, where the limit counts it: not on CPU."""
    memory = memory_of(record)
    return memory.anatomy.outside if memory.peak_bytes > memory.reserved_bytes else 0


def time_chart(shown: Sequence[Record]) -> Figure:
    """Measured seconds of a step by phase."""
    data = []
    for name, colour in zip(("data", "forward", "backward", "optimizer"), COLOURS, strict=False):
        seconds = [
            getattr(record.outcome.phases, name)
            for record in shown
            if isinstance(record.outcome, Measured)
        ]
        data.append(bar(name, colour, seconds, "s"))
    layout = stacked("seconds of an optimizer step, measured", len(shown))
    layout["yaxis"]["title"] = {"text": ""}
    return {"data": _named(data, shown), "layout": layout}


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
    data = [
        bar(term_words(name), colour, [part[name] for part in parts], "s")
        for name, colour in zip(TERMS, COLOURS, strict=False)
        if any(part[name] > 0.001 * sum(part.values()) for part in parts)
    ]
    layout = stacked("seconds of an optimizer step, forecast", len(kept))
    layout["yaxis"]["title"] = {"text": ""}
    return {"data": _named(data, [record for record, _ in kept]), "layout": layout}


def losses_chart(curves: LossCurves) -> Figure:
    """The proof's losses on those of the reference."""
    steps = list(range(1, len(curves.ours) + 1))
    data = [
        {
            "type": "scatter",
            "mode": "lines+markers",
            "name": name,
            "x": steps,
            "y": list(losses),
            "line": {"color": colour, "dash": dash},
            "marker": {"size": size},
        }
        for name, losses, colour, dash, size in (
            (f"trial {curves.reference}, the reference", curves.theirs, LINE_COLOUR, "solid", 11),
            ("the answer, in its proof", curves.ours, BEST_COLOUR, "dot", 6),
        )
    ]
    layout = {
        "height": 340,
        "xaxis": {"title": {"text": "optimizer step"}, "dtick": 1},
        "yaxis": {"title": {"text": "loss"}},
        "legend": LEGEND,
    }
    return {"data": data, "layout": layout}
