"""The picture of a sweep that the live view shows: a function of state, time and size."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from orchestrator.core.objective import counts, keeps_headroom
from orchestrator.core.state import SweepState
from orchestrator.view.bars import budget_bar, memory_bar
from orchestrator.view.figures import baseline_record, progress, speedup
from orchestrator.view.plan_words import fixed_knobs, fixed_words, labelled_words
from orchestrator.view.proof_words import proof_words
from orchestrator.view.words import (
    KIND_WORDS,
    duration,
    forecast_words,
    gib,
    outcome_words,
    plural,
    record_words,
)
from search_spaces.outcome import Measured, MemoryReading
from search_spaces.record import Record

COLOURS: Mapping[str, str] = MappingProxyType(
    {
        "measured": "green",
        "out_of_memory": "yellow",
        "timed_out": "magenta",
        "crashed": "red",
        "refused": "bright_black",
        "diverged": "magenta",
        "cancelled": "bright_black",
    }
)

_WIDE = 120  # columns from which on outcomes are told in full
_ROWS_BESIDE_OUTCOMES = 16
_MOST_OUTCOMES = 12
_NOTES = 2
_LABEL_COLUMNS = 11


def picture(state: SweepState, *, now: float, width: int, height: int) -> RenderableType:
    """The sweep at the moment `now` [seconds since the epoch], for `width` x `height` characters.

    No higher than the terminal: rich cannot redraw in place what has scrolled away.
    """
    rows = Table.grid(padding=(0, 1), expand=True)
    rows.add_column(style="bold", width=_LABEL_COLUMNS - 1, no_wrap=True)
    rows.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
    for label, content in _rows(state, now, width - _LABEL_COLUMNS):
        rows.add_row(label, content)
    most = max(min(height - _ROWS_BESIDE_OUTCOMES, _MOST_OUTCOMES), 1)
    return Group(_title(state), rows, *_outcomes(state, most, width), *_notes(state))


def _title(state: SweepState) -> RenderableType:
    title = Text.assemble(("plimsoll ", "bold"), state.study, " · ", state.spec.model.name)
    if state.fingerprint:
        title.append(f" · {state.fingerprint.device} {state.fingerprint.device_name}")
    if common := fixed_words(state.space):
        title.append(f" · all {common}")
    return Rule(title, style="bright_black", align="left")


def _rows(state: SweepState, now: float, width: int) -> Iterator[tuple[str, RenderableType]]:
    yield from _under_way(state, now)
    yield from _best(state)
    yield from _proof(state)
    yield from _memory(state, width)
    used = progress(state, now)
    left = "" if used.left_seconds is None else f", about {duration(used.left_seconds)} left"
    trials = f" {used.trials} of {used.trials_of}"
    yield "trials", budget_bar(used.trials / used.trials_of, width, trials)
    time = f" {duration(used.seconds)} of {duration(used.seconds_of)}{left}"
    yield "time", budget_bar(used.seconds / used.seconds_of, width, time)
    yield "outcomes", _counts(state)


def _under_way(state: SweepState, now: float) -> Iterator[tuple[str, RenderableType]]:
    if not state.running:
        idle = state.ended.reason if state.ended else "no trial under way"
        yield "now", Text(idle, style="bright_black")
        return
    *others, trial = state.running
    words = labelled_words(trial.plan, state.spec, omit=fixed_knobs(state.space))
    what = "proof of trial" if trial.proof else "trial"
    beside = f", {plural(len(others), 'trial')} beside it" if others else ""
    yield "now", Text.assemble((f"{what} {trial.number} ", "bold"), (words, "cyan"), beside)
    spent, deadline = now - trial.at, trial.deadline_seconds
    late = "bold red" if spent > deadline else "bright_black"
    ran = f"{duration(spent)} of at most {duration(deadline)}"
    forecast = trial.forecast
    expected = f" · forecast {forecast_words(forecast, trial.why)}" if forecast else ""
    yield "", Text.assemble((f"{ran}{expected} · {trial.why}", late))


def _best(state: SweepState) -> Iterator[tuple[str, RenderableType]]:
    best = state.best
    if best is None:
        yield "best", Text("no plan yet that keeps the head-room", style="bright_black")
        return
    words = labelled_words(best.plan, state.spec, omit=fixed_knobs(state.space))
    yield "best", Text.assemble((f"trial {best.number} ", "bold"), (words, "green"))
    gain = speedup(best, baseline_record(state))
    if best.plan == state.space.baseline:
        over = " · the plan a user would start with"
    else:
        over = "" if gain is None else f" · {gain.value:.2f} x the baseline plan"
    yield "", Text.assemble((outcome_words(best.outcome), "bold green"), (over, "bold"))


def _proof(state: SweepState) -> Iterator[tuple[str, RenderableType]]:
    if state.proofs:
        last = state.proofs[-1]
        failed = state.why_failed(last) is not None
        told = f"of trial {last.number} {proof_words(last, state)}"
        yield "proof", Text(told, style="red" if failed else "green")


def _memory(state: SweepState, width: int) -> Iterator[tuple[str, RenderableType]]:
    headroom = state.spec.objective.headroom
    last = next((r for r in reversed(state.records) if isinstance(r.outcome, Measured)), None)
    shown = {"best": state.best} if state.best else {}
    if last is not None and last != state.best:
        shown["last"] = last
    label = "memory"
    for name, record in shown.items():
        memory = _reading(record)
        limit = gib(memory.limit_bytes)
        told = f" {name} {gib(memory.peak_bytes)} of {limit} GiB, {100 * memory.share:.0f} %"
        yield label, memory_bar(memory.share, 1 - headroom, width, told)
        label = ""


def _reading(record: Record) -> MemoryReading:
    assert isinstance(record.outcome, Measured)
    return record.outcome.memory


def _counts(state: SweepState) -> RenderableType:
    counted = counts(state.records)
    told = [
        Text(f"{counted[kind]} {word}", COLOURS[kind])
        for kind, word in KIND_WORDS.items()
        if counted.get(kind)
    ]
    line = Text(" · ").join(told) if told else Text("none yet", "bright_black")
    line.no_wrap = False  # many kinds do not fit on a line of 80
    return line


def _outcomes(state: SweepState, most: int, width: int) -> Iterator[RenderableType]:
    if not state.records:
        return
    table = Table.grid(padding=(0, 2), expand=True)
    table.add_column(justify="right", style="bright_black", no_wrap=True)
    table.add_column(no_wrap=True, overflow="ellipsis")
    table.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
    omit = fixed_knobs(state.space)
    for record in reversed(state.records[-most:]):
        words = labelled_words(record.plan, state.spec, omit=omit)
        told = _told(record, state.spec.objective.headroom, width >= _WIDE)
        table.add_row(str(record.number), Text(words), told)
    more = len(state.records) - most
    older = f" (and {more} before)" if more > 0 else ""
    title = f"last {plural(min(most, len(state.records)), 'outcome')}{older}"
    yield Rule(Text(title), style="bright_black", align="left")
    yield table


def _told(record: Record, headroom: float, wide: bool) -> Text:
    outcome = record.outcome
    told = Text(record_words(record, brief=not wide), COLOURS[outcome.kind])
    if not isinstance(outcome, Measured):
        return told
    share = f"{100 * outcome.memory.share:.0f} %"
    if not keeps_headroom(outcome.memory, headroom):
        return told.append(f", peak {share}: above the line" if wide else " over", "bold red")
    if not wide:
        return told
    forecast = record.forecast
    expected = None if forecast is None else forecast.peak_bytes.value / outcome.memory.limit_bytes
    beside = "" if expected is None else f" (forecast {100 * expected:.0f} %)"
    return told.append(f", peak {share}{beside}", "bright_black")


def _notes(state: SweepState) -> Iterator[RenderableType]:
    for note in state.notes[-_NOTES:]:
        text = Text(f"note: {' '.join(note.text.split())}", style="yellow")
        text.no_wrap, text.overflow = True, "ellipsis"
        yield text
