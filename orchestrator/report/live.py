"""The view for a terminal: one picture of the sweep, redrawn in place."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import TextIO, final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from orchestrator.core.events import (
    Event,
    GroupStarted,
    Noted,
    SweepEnded,
    SweepStarted,
    TrialEnded,
    TrialStarted,
)
from orchestrator.core.objective import counts, within_headroom
from orchestrator.core.state import SweepState
from orchestrator.report.format import duration, gib, plural
from orchestrator.report.labels import (
    KIND_WORDS,
    counts_words,
    fixed_knobs,
    fixed_words,
    forecast_words,
    labelled_words,
    outcome_words,
    plan_words,
    record_words,
    validation_words,
)
from orchestrator.report.sweep_tables import baseline_record, progress, speedup
from orchestrator.tracking.callback import AbstractCallback
from search_spaces.trial import Measured, MemoryReading, Record

_LONGEST = 60  # characters; a longer bar says no more
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
# Drawing takes milliseconds of the cores that a trial on CPU is being measured on.
REFRESHES_PER_SECOND = 2.0


def budget_bar(share: float, width: int, told: str) -> Text:
    """A bar of `share` 0 to 1, and what is told after it, in `width` characters together."""
    length = _length(width, told)
    filled = round(min(max(share, 0.0), 1.0) * length)
    return Text.assemble(("━" * filled, "cyan"), ("─" * (length - filled), "bright_black"), told)


def memory_bar(share: float, line: float, width: int, told: str) -> Text:
    """Peak over limit with the line marked that the headroom draws.

    Args:
        share: Peak over limit; beyond 1 the bar is full.
        line: Share of the limit that may be used, 0 to 1: the load line.
        width: Characters for bar and words.
        told: What is said after the bar.
    """
    length = _length(width, told)
    filled = round(min(max(share, 0.0), 1.0) * length)
    mark = min(round(line * length), length - 1)
    colour = "green" if share <= line else "yellow" if share <= 1 else "red"
    bar = Text()
    for cell in range(length):
        if cell == mark:
            bar.append("┃", "bold red")
        elif cell < filled:
            bar.append("█", colour)
        else:
            bar.append("░", "bright_black")
    return bar.append(told)


def _length(width: int, told: str) -> int:
    return max(min(width - len(told), _LONGEST), 1)


def dashboard(state: SweepState, *, now: float, width: int, height: int) -> RenderableType:
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
    yield from _validation(state)
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
    what = "validation of trial" if trial.validation else "trial"
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
        yield "best", Text("no plan yet that keeps the headroom", style="bright_black")
        return
    words = labelled_words(best.plan, state.spec, omit=fixed_knobs(state.space))
    yield "best", Text.assemble((f"trial {best.number} ", "bold"), (words, "green"))
    gain = speedup(best, baseline_record(state))
    if best.plan == state.space.baseline:
        over = " · the plan a user would start with"
    else:
        over = "" if gain is None else f" · {gain.value:.2f} x the baseline plan"
    yield "", Text.assemble((outcome_words(best.outcome), "bold green"), (over, "bold"))


def _validation(state: SweepState) -> Iterator[tuple[str, RenderableType]]:
    if state.validations:
        last = state.validations[-1]
        failed = state.why_failed(last) is not None
        told = f"of trial {last.number} {validation_words(last, state)}"
        yield "validation", Text(told, style="red" if failed else "green")


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
    if not within_headroom(outcome.memory, headroom):
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


@final
class LiveView(AbstractCallback):
    """Keeps the last state and lets rich draw it, a few times a second, until closed.

    The picture is taken away in the end, since the final report follows it.
    """

    def __init__(self, console: Console, clock: Callable[[], float] = time.time) -> None:
        self._console = console
        self._clock = clock
        self._state: SweepState | None = None
        self._live = Live(
            console=console,
            get_renderable=self._draw,
            refresh_per_second=REFRESHES_PER_SECOND,
            transient=True,
            vertical_overflow="crop",
        )

    def on_event(self, event: Event, state: SweepState) -> None:
        """Keeps the state; the next refresh shows it."""
        del event  # all that is shown is in the state
        self._state = state
        if not self._live.is_started:
            self._live.start()

    def close(self) -> None:
        """Takes the picture away."""
        self._live.stop()

    def _draw(self) -> RenderableType:
        if self._state is None:
            return Text()
        width, height = self._console.size
        return dashboard(self._state, now=self._clock(), width=width, height=height)


@final
class PlainView(AbstractCallback):
    """Writes a line for each event, with the time since the sweep started, and flushes it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def on_event(self, event: Event, state: SweepState) -> None:
        """Writes what happened."""
        stamp = _clock(event.at - state.started_at)
        for line in lines(event, state):
            # a crash's reason may span lines, and a log is read line by line
            text = " ".join(f"{stamp} {line}".split())
            encoding = self._stream.encoding or "utf-8"
            # a log in ASCII must not stop a sweep for the sake of a plus-minus sign
            safe = text.encode(encoding, "replace").decode(encoding)
            self._stream.write(safe + "\n")
        self._stream.flush()

    def close(self) -> None:
        """Every line has been flushed; there is nothing left to do."""


def lines(event: Event, state: SweepState) -> Iterator[str]:
    """What an event means to a person, one line or a few."""
    match event:
        case SweepStarted():
            yield from _started(event)
        case GroupStarted(world_size=ranks, fingerprint=fingerprint):
            yield (
                f"{plural(ranks, 'worker')} ready on {plural(fingerprint.hosts, 'host')}:"
                f" {fingerprint.device} {fingerprint.device_name}"
            )
        case TrialStarted(validation=True, number=number, plan=plan):
            words = labelled_words(plan, state.spec)
            yield f"validation of trial {number} starts, in workers of its own: {words}"
        case TrialStarted(number=number, plan=plan, why=why, forecast=forecast):
            expected = f"; forecast {forecast_words(forecast, why)}" if forecast else ""
            yield f"trial {number} starts: {labelled_words(plan, state.spec)} ({why}{expected})"
        case TrialEnded(record=record) if record.validation:
            yield _validation_ended(record, state)
        case TrialEnded(record=record):
            yield _ended(record, state, event.at)
        case Noted(text=text):
            yield f"note: {text}"
        case SweepEnded(reason=reason):
            yield f"sweep ended: {reason}; {_tally(state)}"


def _started(event: SweepStarted) -> Iterator[str]:
    ruled_out = sum(count for _, count in event.space.ruled_out)
    yield (
        f"study {event.study}: {plural(len(event.space.candidates), 'plan')} to choose from,"
        f" {ruled_out:,} ruled out; budget {plural(event.spec.budget.trials, 'trial')} or"
        f" {duration(60 * event.spec.budget.minutes)}"
    )
    yield f"baseline, the plan a user would start with: {plan_words(event.space.baseline)}"
    if event.memory_limit_bytes:
        yield f"memory limit {gib(event.memory_limit_bytes)} GiB per rank"
    if event.records:
        yield f"going on after {plural(len(event.records), 'trial')} measured before"


def _ended(record: Record, state: SweepState, now: float) -> str:
    parts = [record_words(record)]
    if isinstance(record.outcome, Measured):
        memory = record.outcome.memory
        expected = record.forecast
        beside = "" if expected is None else f" (forecast {gib(expected.peak_bytes.value)})"
        share = f"{100 * memory.share:.0f} % of the limit"
        parts.append(f"peak {gib(memory.peak_bytes)} GiB{beside}, {share}")
        if memory.share > 1 - state.spec.objective.headroom:
            parts.append("above the headroom line")
        gain = speedup(record, baseline_record(state))
        if gain is not None and record.plan != state.space.baseline:
            parts.append(f"{gain.value:.2f} x the baseline")
    if record == state.best:
        parts.append("best so far")
    used = progress(state, now)
    left = used.left_seconds
    ahead = "" if left is None else f", about {duration(left)} left"
    tally = f"{used.trials} of {used.trials_of}{ahead}"
    return f"trial {record.number} ended: {'; '.join(parts)} [{tally}]"


def _validation_ended(validation: Record, state: SweepState) -> str:
    told = f"the validation of trial {validation.number} {validation_words(validation, state)}"
    if validation.number not in state.failed_validations or (after := state.to_validate) is None:
        return told
    if after.number == validation.number:
        return f"{told}; once more, since other work on the machine makes it as slow"
    return f"{told}; trial {after.number} is validated instead"


def _tally(state: SweepState) -> str:
    best = state.best
    told = counts_words(counts(state.records)) or "no trials"
    if best is None:
        return f"{told}; no plan keeps the headroom"
    validated = ", validated" if state.validated is not None else ""
    return (
        f"{told}; best is trial {best.number}{validated}: {labelled_words(best.plan, state.spec)}"
    )


def _clock(seconds: float) -> str:
    whole = max(int(seconds), 0)
    return f"[{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}]"


def make_view(plain: bool = False) -> AbstractCallback:
    """A live view where stdout is a terminal that can move its cursor, plain lines elsewhere.

    Args:
        plain: Lines even on a terminal.
    """
    console = Console()
    if plain or not console.is_terminal or console.is_dumb_terminal:
        return PlainView(sys.stdout)
    return LiveView(console)
