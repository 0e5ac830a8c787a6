"""Tables of a sweep, and what they count."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.core.budget import completed_trials, rank_hours
from orchestrator.core.losses import gradient_difference
from orchestrator.core.objective import Objective, memory_of, ranked, record_of, thrashes
from orchestrator.core.pareto import pareto_front
from orchestrator.core.records import Record
from orchestrator.core.state import SweepState
from orchestrator.explain.effects import Change, KnobEffect
from orchestrator.explain.winner import Lever
from orchestrator.report import labels
from orchestrator.report.format import (
    gib,
    mfu_words,
    number,
    ratio_words,
    significant,
    spread,
    value_words,
)
from orchestrator.report.reasons import reason_words
from orchestrator.report.sections import Table
from search_spaces.safety.files import packaged_table
from search_spaces.specification.sections import Metric
from search_spaces.trial import Measured, MemoryReading, OutOfMemory

_SECONDS_PER_MINUTE = 60.0
_BEST = 5
_FRONT = 8
OUTSIDE = "outside the allocator"


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The used part of the budget; `left_seconds` is None until it has a pace.

    `trials_of` is the budget of trials, or the number of plans if there are fewer.
    """

    trials: int
    trials_of: int
    seconds: float
    seconds_of: float
    left_seconds: float | None


_ANATOMY: Mapping[str, str] = packaged_table(__package__, "words.yaml")["anatomy"]


def progress(state: SweepState, now: float, ready_at: float | None = None) -> Progress:
    """Returns the budget used at `now`, and the time left at the pace of this driver's trials.

    Until the first trial has ended, the time begins at `ready_at`, when its workers were ready.
    """
    budget = state.spec.budget
    seconds_of = budget.minutes * _SECONDS_PER_MINUTE
    began_at = state.budget_began_at if state.records[state.resumed :] else ready_at or now
    seconds = max(now - began_at, 0.0)
    count = completed_trials(state)
    trials_of = max(count, min(budget.trials, len(state.space.candidates)))
    remaining = None
    if own := state.records[state.resumed :]:
        by_trials = (trials_of - count) * seconds / len(own)
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


def baseline_record(state: SweepState) -> Record | None:
    """Returns the trial of the baseline, or None if it was not run."""
    return record_of(state.by_plan, state.space.baseline)


def memory_excess(record: Record, objective: Objective) -> float | None:
    """Returns the excess over usable memory as a share of it, or None if it is unknown.

    A plan within usable memory has a negative excess.
    """
    match record.outcome:
        case Measured(memory=memory):
            return memory.peak_bytes / objective.usable_bytes(memory.limit_bytes) - 1
        case OutOfMemory(wanted_bytes=wanted, limit_bytes=limit) if wanted and limit:
            return wanted / objective.usable_bytes(limit) - 1
        case _:
            return None


def closest_record(records: Iterable[Record], objective: Objective) -> Record | None:
    """Returns the record with the least excess over usable memory, or None if all are unknown."""
    excesses = [
        (excess, record.number, record)
        for record in records
        if (excess := memory_excess(record, objective)) is not None
    ]
    return min(excesses, key=lambda entry: entry[:2])[2] if excesses else None


def best_table(state: SweepState) -> Table:
    """Lists the best plans, best first, and the baseline; `=` marks equals of the best."""
    best, baseline = state.best, baseline_record(state)
    listed = ranked(state.by_plan, state.objective)[:_BEST]
    for also in (best, baseline):
        if also is not None and also.number not in {record.number for record in listed}:
            listed.append(also)
    equal = {record.number for record in state.ties} if len(state.ties) > 1 else set[int]()
    forecast = "\n(forecast)" if any(record.forecast for record in state.records) else ""
    speed, peak = f"#samples/s{forecast}", f"#peak GiB{forecast}"
    offloads = any(one.forecast and one.forecast.host_bytes for one in state.records)
    host = (f"#host GiB{forecast}",) if offloads else ()
    titles = ("#trial", "plan", speed, "#tokens/s", "#MFU", "#step s", peak, *host)
    rows = [
        (
            f"{'=' if record.number in equal else ''}{record.number}",
            _labelled(record, state),
            *_figures(record)[: len(titles) - 2],
        )
        for record in listed
    ]
    if baseline is None:
        words = labels.plan_words(state.space.baseline, omit=labels.fixed_knobs(state.space))
        rows.append(("-", f"{words} (baseline, not run)", *("-" * (len(titles) - 2))))
    bold = {at for at, record in enumerate(listed) if best and record.number == best.number}
    return Table(titles=titles, rows=tuple(rows), bold=bold)


def front_table(state: SweepState) -> Table | None:
    """Lists the Pareto front of feasible plans; None if a single plan is best in every metric.

    The metrics are speed, free memory, and samples per price if there is a price.
    """
    metrics: tuple[Metric, ...] = ("samples_per_second", "headroom")
    titles: tuple[str, ...] = ("#trial", "plan", "#samples/s", "#free memory")
    if state.objective.price is not None:
        metrics, titles = (*metrics, "samples_per_price"), (*titles, "#samples/price")
    front = pareto_front(state.by_plan, state.objective, metrics)
    if len(front) < 2:
        return None
    rows = []
    for record in front[:_FRONT]:
        price = state.objective.value(record, "samples_per_price")
        words = labels.plan_words(record.plan, omit=labels.fixed_knobs(state.space))
        assert isinstance(record.outcome, Measured)
        speed = spread(record.outcome.samples_per_second)
        free = f"{100 * (1 - record.outcome.memory.share):.0f} %"
        prices = [] if price is None else [spread(price)]
        rows.append((str(record.number), words, speed, free, *prices))
    if len(front) > _FRONT:
        rows.append(("", f"... and {len(front) - _FRONT} more", *[""] * (len(titles) - 2)))
    best = state.best
    bold = {at for at, record in enumerate(front) if best and record.number == best.number}
    return Table(titles=titles, rows=tuple(rows), bold=bold)


def _labelled(record: Record, state: SweepState) -> str:
    notes = ", ".join(filter(None, _labels(record, state)))
    words = labels.plan_words(record.plan, omit=labels.fixed_knobs(state.space))
    return f"{words} ({notes})" if notes else words


def _labels(record: Record, state: SweepState) -> Iterator[str]:
    yield "baseline" if record.plan == state.space.baseline else ""
    if record.number in {validation.number for validation in state.validations}:
        yield "validation failed" if record.number in state.failed_validations else "validated"
    if lossy := labels.lossy_words(record.plan, state.spec):
        yield f"lossy: {lossy}"
    yield shortcoming(record, state)
    gradient = gradient_difference(record, state.records, state.spec)
    if gradient and not (state.space.step and state.space.step.draws):
        yield f"gradient {100 * gradient[1]:.2g} % off trial {gradient[0]}'s"
    if isinstance(record.outcome, Measured) and record.outcome.conditions.throttled:
        yield f"throttled: {', '.join(record.outcome.conditions.throttled)}"


def shortcoming(record: Record, state: SweepState) -> str:
    """Says why a record is not feasible; empty if it is."""
    outcome = record.outcome
    if not isinstance(outcome, Measured):
        return labels.KIND_WORDS[outcome.kind]
    if not state.objective.keeps_memory(outcome.memory):
        return "over usable memory"
    if thrashes(outcome.memory):
        return "thrashes"
    return "" if state.objective.feasible(record) else "below a minimum"


def _figures(record: Record) -> tuple[str, ...]:
    outcome, forecast = record.outcome, record.forecast
    if not isinstance(outcome, Measured):
        return tuple("-" * 6)
    memory = outcome.memory
    speed = "" if forecast is None else f"\n({significant(forecast.samples_per_second.value)})"
    peak = "" if forecast is None else f"\n({gib(forecast.peak_bytes.value)})"
    return (
        f"{spread(outcome.samples_per_second)}{speed}",
        f"{outcome.tokens_per_second:,.0f}",
        mfu_words(outcome.mfu),
        number(outcome.step_seconds.value),
        f"{gib(memory.peak_bytes)} {100 * memory.share:3.0f} %{peak}",
        f"({gib(forecast.host_bytes)})" if forecast and forecast.host_bytes else "-",
    )


def anatomy_table(record: Record) -> Table:
    """Breaks the peak of a measured trial down by category."""
    memory = memory_of(record)
    parts = dict(anatomy_rows(memory))
    peak = memory.peak_bytes
    rows = [
        (name, gib(size), f"{100 * size / peak:.0f} %" if peak else "-")
        for name, size in parts.items()
    ]
    if OUTSIDE not in parts:
        rows.append((OUTSIDE, gib(memory.anatomy.outside), "not counted"))
    return Table(titles=("category", "#GiB", "#share of peak"), rows=tuple(rows))


def anatomy_rows(memory: MemoryReading) -> Iterator[tuple[str, int]]:
    """Yields the categories of a peak in bytes, without unknown ones.

    On CPU, bytes outside the allocator are the idle worker, and the limit counts from there.
    """
    for name, words in _ANATOMY.items():
        size_bytes = getattr(memory.anatomy, name)
        if size_bytes is not None:
            yield words, size_bytes
    if memory.peak_bytes > memory.reserved_bytes:
        yield OUTSIDE, memory.anatomy.outside


def outcomes_table(state: SweepState) -> Table:
    """Counts trials by outcome, each with the reason of its first trial."""
    groups: dict[str, list[Record]] = {}
    for record in state.records:
        measured = isinstance(record.outcome, Measured)
        labels = ["measured"] if measured else []
        label = ", ".join(filter(None, (*labels, shortcoming(record, state))))
        groups.setdefault(label, []).append(record)
    order = sorted(groups, key=lambda label: (not label.startswith("measured"), label))
    return Table(
        titles=("outcome", "#trials", "first trial"),
        rows=tuple((one, str(len(groups[one])), _first(groups[one][0], state)) for one in order),
    )


def _first(record: Record, state: SweepState) -> str:
    words = labels.outcome_words(record.outcome)
    if isinstance(record.outcome, Measured):
        violation = next(state.objective.violations(record), None)
        words = "" if violation is None else labels.violation_words(violation)
    return f"trial {record.number}: {words}" if words else ""


def trials_table(state: SweepState) -> Table:
    """Lists every trial and why it was tried."""
    omit = labels.fixed_knobs(state.space)
    return Table(
        titles=("#trial", "plan", "outcome", "reason to try it"),
        rows=tuple(
            (
                str(record.number),
                labels.labelled_plan(record.plan, state.spec, omit=omit),
                labels.record_words(record),
                reason_words(record.reason),
            )
            for record in (*state.records, *state.validations)
        ),
    )


def effects_table(effects: Sequence[KnobEffect]) -> Table:
    """Compares the best plan with plans that differ in one knob."""
    return Table(
        titles=("the best has", "#effect on speed", "#peak GiB", "source"),
        rows=tuple((change_words([effect.change]), *_effect_cells(effect)) for effect in effects),
    )


def levers_blocks(path: Sequence[Lever]) -> tuple[Table, str]:
    """Lists the changes from the baseline to the best plan, with what each gave."""
    rows = []
    for lever in path:
        source = "forecast" if lever.trial is None else f"trial {lever.trial}"
        source += "" if lever.measured or lever.trial is None else " over a forecast"
        gain = "-" if lever.ratio is None else ratio_words(lever.ratio)
        rows.append((change_words(lever.changes), spread(lever.samples_per_second), gain, source))
    note = "each plan has the changes above it too; the gains multiply to the speed-up"
    return Table(titles=("change", "#samples/s", "#gain", "source"), rows=tuple(rows)), note


def change_words(changes: Sequence[Change]) -> str:
    """Formats changes: `micro_batch 4 instead of 1, batching packed instead of padded`."""
    return ", ".join(
        f"{one.knob} {value_words(one.value)} instead of {value_words(one.other_value)}"
        for one in changes
    )


def _effect_cells(effect: KnobEffect) -> tuple[str, str, str]:
    if effect.ratio is None:
        if effect.trial is None:
            return "-", "-", "no valid plan differs in this knob alone"
        ended = labels.KIND_WORDS[effect.outcome_kind or "measured"]
        return "-", "-", f"trial {effect.trial}: {ended}"
    more = effect.peak_bytes or 0.0
    source = "forecast" if effect.trial is None else f"trial {effect.trial}"
    source += ", may not fit" if effect.keeps_headroom is False else ""
    return ratio_words(effect.ratio), f"{'-' if more < 0 else '+'}{gib(abs(more))}", source
