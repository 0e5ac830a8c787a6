"""Charts of a sweep: trials, progress, memory and step time."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate

from orchestrator.core.objective import is_measured, memory_of, throughput
from orchestrator.core.pareto import pareto_front
from orchestrator.core.records import Record
from orchestrator.core.state import SweepState
from orchestrator.explain.context import ForecastContext
from orchestrator.forecast.planner import scatter_points
from orchestrator.report.charts import (
    BEST_COLOUR,
    Figure,
    Trace,
    hover_text,
    memory_lines,
    points,
    speed_chart,
    stacked_bars,
    staircase,
)
from orchestrator.report.labels import KIND_WORDS, plan_words, record_words
from orchestrator.report.sweep_tables import anatomy_rows, baseline_record
from search_spaces.safety.files import packaged_table
from search_spaces.specification.schema import GIB
from search_spaces.trial import Measured, OutOfMemory

_STYLES = packaged_table(__package__, "words.yaml")["outcome_styles"]
_UNTRIED_COLOUR = "#9aa5b1"
_MOST_PLANS = 4  # in the charts of memory and step time
_PHASES = ("data", "forward", "backward", "optimizer")

Place = tuple[float, float]


def sweep_charts(state: SweepState, context: ForecastContext | None) -> Mapping[str, Figure]:
    """Makes the charts that have data, by name."""
    charts: dict[str, Figure] = {"progress": _progress_chart(state)}
    if any(isinstance(record.outcome, Measured | OutOfMemory) for record in state.records):
        charts["trials"] = _trials_chart(state, context)
    compared = [state.best, _baseline(state), *state.ties]
    records = list({record.number: record for record in compared if record is not None}.values())
    if records := records[:_MOST_PLANS]:
        labels = [f"trial {record.number}" for record in records]
        charts["memory"] = _memory_chart(state, records, labels)
        charts["time"] = _time_chart(records, labels)
    return {name: figure for name, figure in charts.items() if figure["data"]}


def _by_outcome(places: Sequence[tuple[Record, Place]]) -> Iterator[Trace]:
    for kind, words in KIND_WORDS.items():
        ended = [(record, place) for record, place in places if record.outcome.kind == kind]
        if ended:
            colour, symbol, _ = _STYLES[kind]
            texts = [_hover(record) for record, _ in ended]
            yield points(words, [place for _, place in ended], colour, texts, symbol=symbol, size=9)


def _hover(record: Record) -> str:
    return hover_text(f"trial {record.number}: {plan_words(record.plan)}", record_words(record))


def _baseline(state: SweepState) -> Record | None:
    record = baseline_record(state)
    return record if record is not None and is_measured(record) else None


def _trials_chart(state: SweepState, context: ForecastContext | None) -> Figure:
    """Plots speed over memory, with forecast plans and the Pareto front.

    A trial without a measured speed lies at its forecast speed, or at the bottom without one.
    """
    traces: list[Trace] = []
    if context is not None:
        plans = [(peak / GIB, rate) for peak, rate, _ in scatter_points(context.forecasts)]
        hover = "forecast: %{y:.3g} samples/s, %{x:.3g} GiB<extra></extra>"
        traces.append(points("forecast", plans, _UNTRIED_COLOUR, hover=hover, size=4, opacity=0.45))
    placed = ((record, _place(record)) for record in state.records)
    traces += _by_outcome([(record, place) for record, place in placed if place is not None])
    front = pareto_front(state.by_plan, state.objective, ("samples_per_second", "headroom"))[::-1]
    if len(front) > 1:
        traces.append(staircase("Pareto front", [_measured_place(record) for record in front]))
    for name, record, symbol, colour in (
        ("best", state.best, "star", BEST_COLOUR),
        ("baseline", _baseline(state), "diamond", "#e69f00"),
    ):
        if record is not None:
            place, text = _measured_place(record), _hover(record)
            traces.append(points(name, [place], colour, [text], symbol=symbol, size=16))
    return speed_chart(traces, "peak memory of the fullest rank, GiB", 460, _memory_lines(state))


def _place(record: Record) -> Place | None:
    """Returns peak in GiB and speed; a trial that ran out of memory lies at the limit."""
    outcome, forecast = record.outcome, record.forecast
    if isinstance(outcome, Measured):
        return _measured_place(record)
    rate = forecast.samples_per_second.value if forecast is not None else 0.0
    if isinstance(outcome, OutOfMemory) and outcome.limit_bytes:
        return outcome.limit_bytes / GIB, rate
    return None if forecast is None else (forecast.peak_bytes.value / GIB, rate)


def _measured_place(record: Record) -> Place:
    return memory_of(record).peak_bytes / GIB, throughput(record)


def _memory_lines(state: SweepState) -> list[Trace]:
    limit = state.memory_limit_bytes
    return memory_lines(state.objective.usable_bytes(limit), limit) if limit else []


def _progress_chart(state: SweepState) -> Figure:
    """Plots speed over the minutes of the search, with the best feasible plan so far."""
    start = min((record.started_at for record in state.records), default=0.0)
    ended = sorted(state.records, key=lambda record: record.ended_at)
    minutes = [round((record.ended_at - start) / 60, 3) for record in ended]
    rates = [throughput(record) if state.objective.feasible(record) else 0.0 for record in ended]
    best = [place for place in zip(minutes, accumulate(rates, max), strict=True) if place[1]]
    places = zip(ended, zip(minutes, map(throughput, ended), strict=True), strict=True)
    traces = [staircase("best so far", best)] if best else []
    traces += _by_outcome(list(places))
    return speed_chart(traces, "minutes since the start of the first trial", 360)


def _memory_chart(state: SweepState, records: Sequence[Record], labels: Sequence[str]) -> Figure:
    """Plots the peak of the fullest rank by category, with usable memory and the limit."""
    bars = [dict(anatomy_rows(memory_of(record))) for record in records]
    names = dict.fromkeys(name for bar in bars for name in bar)
    parts = {name: [bar.get(name, 0) / GIB for bar in bars] for name in names}
    title = "peak memory of the fullest rank, GiB"
    return stacked_bars(title, labels, parts, "GiB", _memory_lines(state))


def _time_chart(records: Sequence[Record], labels: Sequence[str]) -> Figure:
    """Plots the measured time of a step by phase."""
    phases = [one.outcome.phases for one in records if isinstance(one.outcome, Measured)]
    parts = {name: [getattr(seconds, name) for seconds in phases] for name in _PHASES}
    return stacked_bars("measured seconds per optimizer step", labels, parts, "s")
