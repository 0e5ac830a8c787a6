"""The planning report, its charts, and the breakdown of one plan."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from rich.console import RenderableType

from orchestrator.forecast.planner import PlanningReport
from orchestrator.forecast.table import Breakdown, ForecastRow
from orchestrator.report import plan_text
from orchestrator.report.charts import (
    BEST_COLOUR,
    Figure,
    hover_text,
    memory_lines,
    points,
    speed_chart,
    stacked_bars,
    staircase,
)
from orchestrator.report.format import gib, mfu_sentence, mfu_words
from orchestrator.report.html import render_page
from orchestrator.report.plan_tables import counts_table, lengths_table, plans_table, terms_table
from orchestrator.report.sections import Document, Section
from orchestrator.report.terminal import render_text
from orchestrator.report.understood import understood_rows
from search_spaces.costs.memory import CATEGORIES
from search_spaces.costs.time import TERMS
from search_spaces.specification.schema import GIB

_FARTHEST = 10.0  # times the limit; the memory axis ends there
_FIT_COLOURS = ((0, "#d55e00"), (0.5, "#e6c000"), (1, "#3f9fdc"))
_SMALLEST = 0.001  # share of a bar from which on a part is drawn
_HOST = "host GiB: host memory that all ranks of a node offload to"
_SPEED_CAPTION = (
    "Each point is a valid plan. On the Pareto front, no other plan is faster with less memory. The"
    " solid line marks usable memory, the dotted line the memory limit."
)
_MEMORY_CAPTION = (
    "Peak of the fullest device for each of the best plans, or for the closest one if none fits."
)


def render_plan_page(report: PlanningReport) -> str:
    """Renders the HTML of the page, which includes all its scripts and styles."""
    return render_page(plan_document(report), plan_charts(report))


def plan_document(report: PlanningReport) -> Document:
    """Reports a plan: the best one, those close to it, device counts and what was ruled out."""
    return Document(
        title=plan_text.subject_words(report),
        headline=plan_text.answer_sentence(report),
        facts=(
            f"{report.parameters:,} parameters, {report.tokens:,} tokens per sample,"
            f" {report.global_batch:,} samples per step",
        ),
        understood=understood_rows(report.understood),
        notes=tuple(map(plan_text.planning_note_words, report.notes)),
        sections=tuple(_sections(report)),
        footer=f"{report.forecast_plans:,} plans forecast in {report.seconds:.1f} s;"
        f" calibration: {report.provenance}",
    )


def _sections(report: PlanningReport) -> Iterator[Section]:
    best = report.recommendation.best
    yield Section(title="Speed against memory", chart="speed-memory", caption=_SPEED_CAPTION)
    if report.lengths:
        yield Section(title="Sequence lengths", blocks=(lengths_table(report.lengths),))
    if best:
        mfu = mfu_sentence(best[0].mfu, best[0].ceiling, best[0].paper_mfu)
        sentences = (
            *_common(best),
            f"usable memory: {gib(report.line_bytes)} of {gib(report.limit_bytes)} GiB per device",
            "fits: probability that the peak stays below the limit",
            _HOST if any(row.forecast.host_bytes for row in (*best, *report.front)) else "",
            mfu,
        )
        yield Section(title="Best plans", blocks=(plans_table(best), *filter(None, sentences)))
    yield Section(title="Memory by category", chart="memory", caption=_MEMORY_CAPTION)
    time = "Time of an optimizer step for the same plans."
    yield Section(title="Step time by term", chart="time", caption=time)
    if report.front:
        title = "Pareto front: no other plan is faster with less memory"
        yield Section(title=title, blocks=(plans_table(report.front), *_common(report.front)))
    if counts := counts_table(report):
        yield Section(title="Device counts", blocks=(counts,))
    coverage = tuple(plan_text.ruled_out_sentences(report.recommendation))
    yield Section(title="Coverage of the space", blocks=coverage)


def _common(rows: Sequence[ForecastRow]) -> Iterator[str]:
    if words := plan_text.common_knobs([row.plan for row in rows])[1]:
        yield f"all plans: {words}"


def render_breakdown(breakdown: Breakdown) -> RenderableType:
    """Renders the forecast of one plan term by term."""
    row, forecast = breakdown.expected, plan_text.forecast_sentence(breakdown.expected.forecast)
    stage = f" on the {row.stage} pipeline stage" if row.stage else ""
    shares = [f"recomputation is {plan_text.percent(row.recomputed)} of the compute"]
    time = (terms_table(breakdown.time, seconds=True), *(shares if row.recomputed else ()))
    memory = (terms_table(breakdown.memory, seconds=False),)
    return render_text(
        Document(
            title=plan_text.expected_words(row),
            headline=f"{forecast}{stage}; MFU {mfu_words(row.mfu)}",
            sections=(
                Section(title="Time per step", blocks=time),
                Section(title="Memory at the peak", blocks=memory),
            ),
            footer=f"calibration: {breakdown.provenance}; --records of a study narrows the"
            " intervals",
        )
    )


def plan_charts(report: PlanningReport) -> Mapping[str, Figure]:
    """Makes the charts that have data, by name."""
    charts: dict[str, Figure] = {}
    if report.scatter_points:
        charts["speed-memory"] = _speed_memory(report)
    rows = report.recommendation.best or tuple(filter(None, (report.recommendation.nearest,)))
    if rows:
        labels = [f"plan {number}" for number in range(1, len(rows) + 1)]  # as in the table
        held = [{name: size / GIB for name, size in row.held_bytes} for row in rows]
        memory = _parts(held, CATEGORIES, plan_text.category_words)
        lines = memory_lines(report.line_bytes, report.limit_bytes)
        title = "peak memory per device, GiB"
        charts["memory"] = stacked_bars(title, labels, memory, "GiB", lines)
        time = _parts([dict(row.seconds) for row in rows], TERMS, plan_text.term_words)
        charts["time"] = stacked_bars("seconds per step", labels, time, "s")
    return charts


def _parts(
    bars: Sequence[Mapping[str, float]], names: Sequence[str], words: Callable[[str], str]
) -> dict[str, list[float]]:
    return {
        words(name): [bar[name] for bar in bars]
        for name in names
        if any(bar[name] > _SMALLEST * sum(bar.values()) for bar in bars)
    }


def _speed_memory(report: PlanningReport) -> Figure:
    peaks, rates, fits = zip(*report.scatter_points, strict=True)
    plans = points(
        "plans",
        [(peak / GIB, rate) for peak, rate in zip(peaks, rates, strict=True)],
        [round(share, 3) for share in fits],
        hover="%{y:.3g} samples/s<br>%{x:.3g} GiB<extra></extra>",
        size=5,
        colorscale=_FIT_COLOURS,
        cmin=0,
        cmax=1,
        opacity=0.6,
        colorbar={
            "title": {"text": "probability to fit", "side": "right"},
            "thickness": 10,
            "len": 0.7,
        },
    )
    traces = [plans]
    if report.front:
        front = [_place(row) for row in report.front]
        hovers = [_hover(row) for row in report.front]
        traces += [
            staircase("Pareto front", front),
            points("on the front", front, BEST_COLOUR, hovers, size=7),
        ]
    if (best := report.best) is not None:
        place, text = _place(best), _hover(best)
        star = points("recommended", [place], BEST_COLOUR, [text], symbol="star", size=16)
        traces.append(star)
    farthest = min(max(peaks), _FARTHEST * max(report.limit_bytes, min(peaks)))
    farthest = max(farthest, 1.2 * report.limit_bytes)
    ends = (0.9 * min(*peaks, report.line_bytes) / GIB, farthest / GIB)
    # full tick labels, where plotly would shorten 20 to 2
    axis = {"type": "log", "range": tuple(map(math.log10, ends)), "tickformat": ",~g"}
    lines = memory_lines(report.line_bytes, report.limit_bytes)
    return speed_chart(traces, "peak memory per device, GiB", 460, lines, **axis)


def _place(row: ForecastRow) -> tuple[float, float]:
    return row.forecast.peak_bytes.value / GIB, row.forecast.samples_per_second.value


def _hover(row: ForecastRow) -> str:
    return hover_text(plan_text.expected_words(row), plan_text.forecast_sentence(row.forecast))
