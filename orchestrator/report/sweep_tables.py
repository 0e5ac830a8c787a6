"""Tables of the sweep report, narrow enough for 80 columns and plain enough for a log."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

from rich import box
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from orchestrator.core.budget import completed_trials, rank_hours
from orchestrator.core.objective import ranked, record_of, thrashes, within_headroom
from orchestrator.core.pareto import pareto_front
from orchestrator.core.records import Record
from orchestrator.core.state import SweepState
from orchestrator.report.format import gib, mfu_words, number, rate, spread
from orchestrator.report.labels import (
    KIND_WORDS,
    fixed_knobs,
    lossy_words,
    outcome_words,
    plan_words,
    violation_words,
)
from search_spaces.spec.sections import Metric
from search_spaces.trial import Anatomy, Measured, OutOfMemory

_SECONDS_PER_MINUTE = 60.0
_BEST = 5
_FRONT = 8
_INDENT = (0, 0, 0, 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The used part of the budget; `left_seconds` is None until a trial has ended.

    `trials_of` is the budget of trials, or the number of plans if there are fewer.
    """

    trials: int
    trials_of: int
    seconds: float
    seconds_of: float
    left_seconds: float | None


ANATOMY_WORDS = MappingProxyType(
    {
        "weights": "weights",
        "gradients": "gradients",
        "optimizer_states": "optimizer states",
        "activations": "activations and temporaries",
        "fragmentation": "fragmentation",
    }
)


def progress(state: SweepState, now: float) -> Progress:
    """Returns the budget used at `now` and the time left.

    It is estimated from the median trial, from how many trials of this driver ran at the same time,
    and from how fast they use GPU-hours.
    """
    budget = state.spec.budget
    seconds_of = budget.minutes * _SECONDS_PER_MINUTE
    seconds = max(now - state.budget_began_at, 0.0)
    count = completed_trials(state)
    trials_of = max(count, min(budget.trials, len(state.space.candidates)))
    remaining = None
    if state.records:
        median = statistics.median(trial_seconds(record) for record in state.records)
        own = state.records[state.resumed :]
        by_trials = (trials_of - count) * median / _at_once(own)
        by_gpus = math.inf
        if budget.gpu_hours is not None and (used := rank_hours(own)):
            by_gpus = seconds * (budget.gpu_hours - rank_hours(state.records)) / used
        remaining = max(min(by_trials, by_gpus, seconds_of - seconds), 0.0)
    return Progress(
        trials=count,
        trials_of=trials_of,
        seconds=seconds,
        seconds_of=seconds_of,
        left_seconds=remaining,
    )


def _at_once(records: Sequence[Record]) -> float:
    if not records:
        return 1.0
    span = max(one.ended_at for one in records) - min(one.started_at for one in records)
    return max(sum(map(trial_seconds, records)) / span, 1.0) if span > 0 else 1.0


def trial_seconds(record: Record) -> float:
    """Returns the wall-clock time of a trial in seconds."""
    return max(record.ended_at - record.started_at, 0.0)


def baseline_record(state: SweepState) -> Record | None:
    """Returns the trial of the baseline, or None if it was not run."""
    return record_of(state.by_plan, state.space.baseline)


def memory_excess(record: Record, headroom: float) -> float | None:
    """Returns the excess over usable memory as a share of it, or None if it is unknown.

    Usable memory is the limit without the headroom. The excess is negative for a plan within it,
    and 0.25 for one that wanted a quarter too much.
    """
    match record.outcome:
        case Measured(memory=memory):
            return memory.share / (1 - headroom) - 1
        case OutOfMemory(wanted_bytes=wanted, limit_bytes=limit) if wanted and limit:
            return wanted / limit / (1 - headroom) - 1
        case _:
            return None


def closest_record(records: Iterable[Record], headroom: float) -> Record | None:
    """Returns the record with the least excess over usable memory, or None if all are unknown."""
    excesses = [
        (excess, record.number, record)
        for record in records
        if (excess := memory_excess(record, headroom)) is not None
    ]
    return min(excesses, key=lambda entry: entry[:2])[2] if excesses else None


def plain_table(*headers: tuple[str, bool]) -> Table:
    """Makes a table without side borders; each header has a flag that marks a column of numbers."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 2, 0, 0), show_edge=False)
    for header, numeric in headers:
        table.add_column(header, justify="right" if numeric else "left", no_wrap=numeric)
    return table


def section(title: str, *content: RenderableType) -> Iterator[RenderableType]:
    """Yields a heading and its content, indented."""
    yield Text(f"\n{title}", "bold cyan")
    for part in content:
        yield Padding(part, _INDENT, expand=False)


def best_table(state: SweepState) -> Table:
    """Lists the best plans, best first, and the baseline; `=` marks equals of the best."""
    order = ranked(state.by_plan, state.objective)
    equal, best = {record.number for record in state.ties}, state.best
    baseline = baseline_record(state)
    offloads = any(record.forecast and record.forecast.host_bytes for record in state.records)
    forecast = "\n(forecast)" if any(record.forecast for record in state.records) else ""
    table = plain_table(
        ("trial", True),
        ("plan", False),
        (f"samples/s{forecast}", True),
        ("tokens/s", True),
        ("MFU", True),
        ("step s", True),
        (f"peak GiB{forecast}", True),
        *([(f"host GiB{forecast}", True)] if offloads else []),
    )
    listed = order[:_BEST]
    if best is not None and all(record.number != best.number for record in listed):
        listed.append(best)
    for record in listed:
        mark = "=" if record.number in equal and len(equal) > 1 else ""
        is_best = best is not None and record.number == best.number
        _add(table, record, state, mark, style="bold" if is_best else "")
    if baseline is None:
        words = plan_words(state.space.baseline, omit=fixed_knobs(state.space))
        table.add_row("-", Text(f"{words} (baseline, not run)"), "-")
    elif baseline not in listed:
        _add(table, baseline, state, "", style="")
    return table


def front_table(state: SweepState) -> Table | None:
    """Lists the Pareto front of feasible plans; None if a single plan is best in every metric.

    The metrics are speed, free memory, and samples per price if there is a price.
    """
    priced = state.objective.is_priced
    metrics: tuple[Metric, ...] = ("samples_per_second", "headroom")
    if priced:
        metrics = (*metrics, "samples_per_price")
    front = pareto_front(state.by_plan, state.objective, metrics)
    if len(front) < 2:
        return None
    columns = ("trial", "plan", "samples/s", "free memory", *(["samples/price"] if priced else []))
    table = plain_table(*((name, name != "plan") for name in columns))
    for record in front[:_FRONT]:
        assert isinstance(record.outcome, Measured)
        price = state.objective.value(record, "samples_per_price")
        table.add_row(
            str(record.number),
            Text(plan_words(record.plan, omit=fixed_knobs(state.space))),
            spread(record.outcome.samples_per_second),
            f"{100 * (1 - record.outcome.memory.share):.0f} %",
            *([] if price is None else [spread(price)]),
            style="bold" if state.best and record.number == state.best.number else "",
        )
    if len(front) > _FRONT:
        table.add_row("", Text(f"... and {len(front) - _FRONT} more"))
    return table


def _add(table: Table, record: Record, state: SweepState, mark: str, *, style: str) -> None:
    words = plan_words(record.plan, omit=fixed_knobs(state.space))
    labels = [*_labels(record, state)]
    plan = Text(f"{words} ({', '.join(labels)})" if labels else words)
    if isinstance(record.outcome, Measured):
        table.add_row(
            f"{mark}{record.number}",
            plan,
            *_figures(record, record.outcome)[: len(table.columns) - 2],
            style=style,
        )
        return
    table.add_row(f"{mark}{record.number}", plan, "-", style=style)


def _labels(record: Record, state: SweepState) -> Iterator[str]:
    if record.plan == state.space.baseline:
        yield "baseline"
    if record.number in {validation.number for validation in state.validations}:
        yield "validation failed" if record.number in state.failed_validations else "validated"
    if lossy := lossy_words(record.plan, state.spec):
        yield f"lossy: {lossy}"
    outcome = record.outcome
    if isinstance(outcome, Measured):
        if not within_headroom(outcome.memory, state.spec.objective.headroom):
            yield "over usable memory"
        elif thrashes(outcome.memory):
            yield "thrashes"
        elif not state.objective.feasible(record):
            yield "below a minimum"
        if outcome.conditions.throttled:
            yield f"throttled: {', '.join(outcome.conditions.throttled)}"
    else:
        yield KIND_WORDS[outcome.kind]


def _figures(record: Record, outcome: Measured) -> tuple[str, ...]:
    memory, forecast = outcome.memory, record.forecast
    host = forecast.host_bytes if forecast else 0.0
    speed = "" if forecast is None else f"\n({rate(forecast.samples_per_second.value)})"
    peak = "" if forecast is None else f"\n({gib(forecast.peak_bytes.value)})"
    return (
        f"{spread(outcome.samples_per_second)}{speed}",
        f"{outcome.tokens_per_second:,.0f}",
        mfu_words(outcome.mfu),
        number(outcome.step_seconds.value),
        f"{gib(memory.peak_bytes)} {100 * memory.share:3.0f} %{peak}",
        f"({gib(host)})" if host else "-",
    )


def anatomy_table(record: Record) -> Table:
    """Breaks the peak of a measured trial down by category."""
    assert isinstance(record.outcome, Measured)
    memory = record.outcome.memory
    table = plain_table(("category", False), ("GiB", True), ("share of peak", True))
    for name, size in anatomy_rows(memory.anatomy):
        share = f"{100 * size / memory.peak_bytes:.0f} %" if memory.peak_bytes else "-"
        table.add_row(name, gib(size), share)
    # On CPU this is the idle worker, and the limit counts from there.
    counted = memory.peak_bytes > memory.reserved_bytes
    outside = memory.anatomy.outside
    share = f"{100 * outside / memory.peak_bytes:.0f} %" if counted else "not counted"
    table.add_row("outside the allocator", gib(outside), share)
    return table


def anatomy_rows(anatomy: Anatomy) -> Iterator[tuple[str, int]]:
    """Yields the categories that the allocator held at the peak, in bytes, without unknown ones."""
    for name, words in ANATOMY_WORDS.items():
        size_bytes = getattr(anatomy, name)
        if size_bytes is not None:
            yield words, size_bytes


def outcomes_table(state: SweepState) -> Table:
    """Counts trials by outcome, each with the reason of its first trial."""
    headroom = state.spec.objective.headroom
    table = plain_table(("outcome", False), ("trials", True), ("first trial", False))

    def within(record: Record) -> bool:
        outcome = record.outcome
        return isinstance(outcome, Measured) and within_headroom(outcome.memory, headroom)

    def over(record: Record) -> bool:
        return record.outcome.kind == "measured" and not within(record)

    def thrashing(record: Record) -> bool:
        outcome = record.outcome
        return isinstance(outcome, Measured) and within(record) and thrashes(outcome.memory)

    def below(record: Record) -> bool:
        return within(record) and not thrashing(record) and not state.objective.feasible(record)

    _add_outcome(table, "measured", state, state.objective.feasible, lambda _: "")
    _add_outcome(table, "measured, below a minimum", state, below, _violation(state))
    _add_outcome(table, "measured, over usable memory", state, over, _peak)
    _add_outcome(table, "measured, but thrashes", state, thrashing, _violation(state))
    for kind, words in KIND_WORDS.items():
        if kind != "measured":
            ended = partial(_ended_as, kind)
            _add_outcome(table, words, state, ended, lambda record: outcome_words(record.outcome))
    return table


def _ended_as(kind: str, record: Record) -> bool:
    return record.outcome.kind == kind


def _peak(record: Record) -> str:
    assert isinstance(record.outcome, Measured)
    share = f"{100 * record.outcome.memory.share:.0f} % of the limit"
    return f"{outcome_words(record.outcome)}, peak {share}"


def _violation(state: SweepState) -> Callable[[Record], str]:
    def words(record: Record) -> str:
        violation = next(state.objective.violations(record), None)
        return "" if violation is None else violation_words(violation)

    return words


def _add_outcome(
    table: Table,
    words: str,
    state: SweepState,
    matches: Callable[[Record], bool],
    reason: Callable[[Record], str],
) -> None:
    records = [record for record in state.records if matches(record)]
    if records:
        first = reason(records[0])
        detail = Text(f"trial {records[0].number}: {first}" if first else "")
        table.add_row(words, str(len(records)), detail)


def rules_table(state: SweepState) -> Table:
    """Counts the combinations that each rule forbids."""
    table = plain_table(("rule", False), ("combinations", True))
    for rule, count in state.space.ruled_out:
        table.add_row(rule.replace("_", " "), f"{count:,}")
    return table
