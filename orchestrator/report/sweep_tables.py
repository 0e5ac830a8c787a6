"""The tables of the report; narrow enough for 80 columns, plain enough for a log."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from rich import box
from rich.table import Table
from rich.text import Text

from orchestrator.core.objective import ranked, record_of, within_headroom
from orchestrator.core.pareto import pareto_front
from orchestrator.core.state import SweepState
from orchestrator.report.format import gib, number, rate, spread
from orchestrator.report.labels import (
    KIND_WORDS,
    fixed_knobs,
    lossy_words,
    outcome_words,
    plan_words,
)
from search_spaces.spec.sections import Metric
from search_spaces.trial import Anatomy, Estimate, Measured, OutOfMemory, Record

_SECONDS_PER_MINUTE = 60.0
_BEST = 5
_FRONT = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How much of the budget is used; `left_seconds` is None until a trial has ended."""

    trials: int
    trials_of: int
    seconds: float
    seconds_of: float
    left_seconds: float | None


def progress(state: SweepState, now: float) -> Progress:
    """Budget used at `now`, and the time left, judged from the median trial so far."""
    budget = state.spec.budget
    seconds_of = budget.minutes * _SECONDS_PER_MINUTE
    seconds = max(now - state.started_at, 0.0)
    left = None
    if state.records:
        median = statistics.median(trial_seconds(record) for record in state.records)
        trials = max(budget.trials - len(state.records), 0)
        left = min(trials * median, max(seconds_of - seconds, 0.0))
    return Progress(
        trials=len(state.records),
        trials_of=budget.trials,
        seconds=seconds,
        seconds_of=seconds_of,
        left_seconds=left,
    )


def trial_seconds(record: Record) -> float:
    """Wall-clock of the trial in seconds."""
    return max(record.ended_at - record.started_at, 0.0)


def baseline_record(state: SweepState) -> Record | None:
    """The trial of the plan that a user would start with, None if it was not run."""
    return record_of(state.records, state.space.baseline)


def speedup(record: Record | None, baseline: Record | None) -> Estimate | None:
    """Samples per second of `record` over those of `baseline`; None unless both are measured.

    The interval takes the two measurements as independent: their relative half-widths add
    up in quadrature.
    """
    if record is None or baseline is None:
        return None
    ours, theirs = record.outcome, baseline.outcome
    if not (isinstance(ours, Measured) and isinstance(theirs, Measured)):
        return None
    if record.plan == baseline.plan:
        return Estimate(value=1.0, low=1.0, high=1.0)
    return quotient(ours.samples_per_second, theirs.samples_per_second)


def quotient(above: Estimate, below: Estimate) -> Estimate | None:
    """One rate over another, taken as independent of it; None where one of them is 0."""
    if not above.value or not below.value:
        return None
    ratio = above.value / below.value
    relative = math.hypot(above.relative_half_width, below.relative_half_width)
    return Estimate(value=ratio, low=ratio * max(1 - relative, 0.0), high=ratio * (1 + relative))


def over_the_line(record: Record, headroom: float) -> float | None:
    """Bytes wanted over those that the headroom leaves, less 1; None if nobody knows them.

    Negative where the plan keeps the headroom, 0.25 where it wanted a quarter too much.
    """
    match record.outcome:
        case Measured(memory=memory):
            return memory.share / (1 - headroom) - 1
        case OutOfMemory(wanted_bytes=wanted, limit_bytes=limit) if wanted and limit:
            return wanted / limit / (1 - headroom) - 1
        case _:
            return None


def nearest(records: Iterable[Record], headroom: float) -> Record | None:
    """The record that is least over the line, for when no plan keeps the headroom."""
    known = [
        (excess, record.number, record)
        for record in records
        if (excess := over_the_line(record, headroom)) is not None
    ]
    return min(known, key=lambda entry: entry[:2])[2] if known else None


def plain_table(*headers: tuple[str, bool]) -> Table:
    """A table without side borders; each header says whether its column holds numbers."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 2, 0, 0), show_edge=False)
    for header, numeric in headers:
        table.add_column(header, justify="right" if numeric else "left", no_wrap=numeric)
    return table


def best_table(state: SweepState) -> Table:
    """The best plans and the baseline plan, fastest first, equals of the best marked by `=`."""
    order = ranked(state.records, state.goal)
    equal, best = {record.number for record in state.equals}, state.best
    baseline = baseline_record(state)
    beside = "\n(forecast)" if any(record.forecast for record in state.records) else ""
    table = plain_table(
        ("trial", True),
        ("plan", False),
        (f"samples/s{beside}", True),
        ("tokens/s", True),
        ("MFU", True),
        ("step s", True),
        (f"peak GiB{beside}", True),
    )
    shown = order[:_BEST]
    if best is not None and best not in shown:
        shown.append(best)
    for record in shown:
        mark = "=" if record.number in equal and len(equal) > 1 else ""
        _add(table, record, state, mark, style="bold" if record == best else "")
    if baseline is None:
        words = plan_words(state.space.baseline, omit=fixed_knobs(state.space))
        table.add_row("-", Text(f"{words} (baseline, not tried)"), "-")
    elif baseline not in shown:
        _add(table, baseline, state, "", style="")
    return table


def front_table(state: SweepState) -> Table | None:
    """The feasible plans that no other beats in all that counts; None if one beats them all.

    What counts is speed and the memory left free, and where a price is known samples for it.
    """
    priced = state.goal.is_priced
    metrics: tuple[Metric, ...] = ("samples_per_second", "headroom")
    shown = pareto_front(state.records, state.goal, (*metrics, *_priced(priced)))
    if len(shown) < 2:
        return None
    columns = ("trial", "plan", "samples/s", "memory free", *(["samples/price"] if priced else []))
    table = plain_table(*((name, name != "plan") for name in columns))
    for record in shown[:_FRONT]:
        assert isinstance(record.outcome, Measured)
        price = state.goal.value(record, "samples_per_price")
        table.add_row(
            str(record.number),
            Text(plan_words(record.plan, omit=fixed_knobs(state.space))),
            spread(record.outcome.samples_per_second),
            f"{100 * (1 - record.outcome.memory.share):.0f} %",
            *([] if price is None else [spread(price)]),
            style="bold" if record == state.best else "",
        )
    if len(shown) > _FRONT:
        table.add_row("", Text(f"... and {len(shown) - _FRONT} more"))
    return table


def _priced(known: bool) -> tuple[Metric, ...]:
    return ("samples_per_price",) if known else ()


def _add(table: Table, record: Record, state: SweepState, mark: str, *, style: str) -> None:
    words = plan_words(record.plan, omit=fixed_knobs(state.space))
    labels = [*_labels(record, state)]
    plan = Text(f"{words} ({', '.join(labels)})" if labels else words)
    if isinstance(record.outcome, Measured):
        table.add_row(
            f"{mark}{record.number}", plan, *_figures(record, record.outcome), style=style
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
            yield "over the line"
        elif not state.goal.feasible(record):
            yield "less than asked"
        if outcome.conditions.throttled:
            yield f"throttled: {', '.join(outcome.conditions.throttled)}"
    else:
        yield KIND_WORDS[outcome.kind]


def _figures(record: Record, outcome: Measured) -> tuple[str, ...]:
    """In the cells of speed and peak, what was expected stands below what was measured."""
    memory, expected = outcome.memory, record.forecast
    speed = "" if expected is None else f"\n({rate(expected.samples_per_second.value)})"
    peak = "" if expected is None else f"\n({gib(expected.peak_bytes.value)})"
    return (
        f"{spread(outcome.samples_per_second)}{speed}",
        f"{outcome.tokens_per_second:,.0f}",
        "-" if outcome.mfu is None else f"{100 * outcome.mfu:.0f} %",
        number(outcome.step_seconds.value),
        f"{gib(memory.peak_bytes)} {100 * memory.share:3.0f} %{peak}",
    )


def anatomy_table(record: Record) -> Table:
    """What the peak of a measured trial was made of."""
    assert isinstance(record.outcome, Measured)
    memory = record.outcome.memory
    table = plain_table(("held by", False), ("GiB", True), ("of the peak", True))
    for name, size in anatomy_rows(memory.anatomy):
        share = f"{100 * size / memory.peak_bytes:.0f} %" if memory.peak_bytes else "-"
        table.add_row(name, gib(size), share)
    # on CPU the bare worker lies outside, and the limit counts from there
    counted = memory.peak_bytes > memory.reserved_bytes
    outside = memory.anatomy.outside
    share = f"{100 * outside / memory.peak_bytes:.0f} %" if counted else "not counted"
    table.add_row("outside the allocator", gib(outside), share)
    return table


def anatomy_rows(anatomy: Anatomy) -> Iterator[tuple[str, int]]:
    """What the allocator held at the peak, by readable names, in bytes; unknown ones left out."""
    yield "weights", anatomy.weights
    yield "gradients", anatomy.gradients
    yield "optimizer states", anatomy.optimizer_states
    yield "activations and temporaries", anatomy.activations
    if anatomy.fragmentation is not None:
        yield "fragmentation", anatomy.fragmentation


def ends_table(state: SweepState) -> Table:
    """How many trials ended in which way, and the first reason of each."""
    headroom = state.spec.objective.headroom
    table = plain_table(("ended", False), ("trials", True), ("first of them", False))

    def kept(record: Record) -> bool:
        outcome = record.outcome
        return isinstance(outcome, Measured) and within_headroom(outcome.memory, headroom)

    def over(record: Record) -> bool:
        return record.outcome.kind == "measured" and not kept(record)

    def short(record: Record) -> bool:
        return kept(record) and not state.goal.feasible(record)

    _add_ending(table, "measured", state, state.goal.feasible, _silent)
    _add_ending(table, "measured, less than asked", state, short, _shortfall(state))
    _add_ending(table, "measured, over the line", state, over, _peak)
    for kind, words in KIND_WORDS.items():
        if kind != "measured":
            ended = partial(_ended_as, kind)
            _add_ending(table, words, state, ended, lambda record: outcome_words(record.outcome))
    return table


def _ended_as(kind: str, record: Record) -> bool:
    return record.outcome.kind == kind


def _silent(_: Record) -> str:
    return ""  # that a trial was measured needs no reason


def _peak(record: Record) -> str:
    assert isinstance(record.outcome, Measured)
    share = f"{100 * record.outcome.memory.share:.0f} % of the limit"
    return f"{outcome_words(record.outcome)}, peak {share}"


def _shortfall(state: SweepState) -> Callable[[Record], str]:
    return lambda record: next(state.goal.shortfalls(record), "")


def _add_ending(
    table: Table,
    words: str,
    state: SweepState,
    belongs: Callable[[Record], bool],
    reason: Callable[[Record], str],
) -> None:
    records = [record for record in state.records if belongs(record)]
    if records:
        told = reason(records[0])
        first = Text(f"trial {records[0].number}: {told}" if told else "")
        table.add_row(words, str(len(records)), first)


def rules_table(state: SweepState) -> Table:
    """How many combinations each rule forbids."""
    table = plain_table(("rule", False), ("combinations", True))
    for rule, count in state.space.ruled_out:
        table.add_row(rule.replace("_", " "), f"{count:,}")
    return table
