"""Progress of a running sweep: a dashboard for terminals, plain lines for logs."""

import logging
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from math import inf
from typing import Any, TextIO, final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from orchestrator.core import events
from orchestrator.core.objective import memory_of, outcome_counts, speedup
from orchestrator.core.reasons import ChecksMachine
from orchestrator.core.records import Record
from orchestrator.core.repeats import is_repeat, most_repeats, repeats_at_the_end
from orchestrator.core.state import AbstractView, SweepState
from orchestrator.host import below_notebook, in_notebook
from orchestrator.report import labels
from orchestrator.report.format import duration, gib, plural
from orchestrator.report.reasons import note_words, reason_words, stop_words
from orchestrator.report.sweep_tables import baseline_record, progress, shortcoming
from orchestrator.report.terminal import SafeConsole, labelled_rows, without_controls
from orchestrator.report.understood import understood_rows
from search_spaces.safety.files import packaged_table
from search_spaces.trial import Activity, Measured

_LONGEST_BAR = 60  # characters; a longer bar shows no more
_STYLES = packaged_table(__package__, "words.yaml")["outcome_styles"]
_WIDE = 120  # columns; from here on outcomes have their peak too
_OTHER_ROWS = 17
_MOST_OUTCOMES = 12
_NOTES = 2
LOG_PAUSE_SECONDS = 10.0
_LABEL_COLUMNS = 11
_ONE_LINE: Any = {"no_wrap": True, "overflow": "ellipsis"}
# Drawing takes milliseconds on cores that may be measuring a trial on CPU.
REFRESHES_PER_SECOND = 2.0


def bar(share: float, width: int, label: str, line: float | None = None) -> Text:
    """Draws a bar for a share from 0 to 1 and its label, `width` characters in total.

    Args:
        share: Share of the bar that is filled; from 1 on all of it.
        width: Characters of bar and label together.
        label: Text after the bar.
        line: For memory: the share of the limit that a plan may use, which gets a mark.
    """
    length = max(min(width - len(label), _LONGEST_BAR), 1)
    filled = round(min(max(share, 0.0), 1.0) * length)
    if line is None:
        return Text("━" * filled, "cyan").append("─" * (length - filled), "bright_black") + label
    colour = "green" if share <= line else "yellow" if share <= 1 else "red"
    cells = Text("█" * filled, colour).append("░" * (length - filled), "bright_black")
    mark = min(round(line * length), length - 1)
    return Text.assemble(cells[:mark], ("┃", "bold red"), cells[mark + 1 :], label)


def dashboard(
    state: SweepState,
    *,
    now: float,
    width: int,
    height: int,
    activity: Activity | None = None,
    ready_at: float | None = None,
) -> RenderableType:
    """Draws a sweep on `width` x `height` characters, at `now` seconds since the epoch.

    It is never higher than the terminal: rich cannot redraw lines that have scrolled away. The
    time of the budget begins at `ready_at`; None: the first workers are not ready.
    """
    rows = Table.grid(padding=(0, 1), expand=True)
    rows.add_column(style="bold", width=_LABEL_COLUMNS - 1, no_wrap=True)
    rows.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
    for label, content in _rows(state, now, width - _LABEL_COLUMNS, activity, ready_at):
        rows.add_row(label, content)
    most = max(min(height - _OTHER_ROWS, _MOST_OUTCOMES), 1)
    notes = [
        Text(" ".join(f"note: {note_words(note.note)}".split()), "yellow", **_ONE_LINE)
        for note in state.notes[-_NOTES:]
    ]
    return Group(_title(state), rows, *_outcomes(state, most, width), *notes)


def _title(state: SweepState) -> RenderableType:
    title = Text.assemble(("plimsoll ", "bold"), state.study, " · ", state.spec.model.title)
    if state.fingerprint:
        title.append(f" · {state.fingerprint.device} {state.fingerprint.device_name}")
    if common := labels.fixed_words(state.space):
        title.append(f" · all {common}")
    return Rule(title, style="bright_black", align="left")


def _rows(
    state: SweepState, now: float, width: int, activity: Activity | None, ready_at: float | None
) -> Iterator[tuple[str, RenderableType]]:
    yield from _running(state, now, activity, ready_at)
    if activity is not None and state.ended is None:
        yield "", Text(labels.activity_words(activity), "cyan")
    yield from _best(state)
    for last in state.validations[-1:]:
        style = "red" if last.number in state.failed_validations else "green"
        yield (
            "validation",
            Text(f"of trial {last.number} {labels.validation_words(last, state)}", style),
        )
    yield from _memory(state, width)
    used = progress(state, now, ready_at)
    left = "" if used.left_seconds is None else f", about {duration(used.left_seconds)} left"
    trials = f" {used.trials} of {used.trials_of}"
    yield "trials", bar(used.trials / used.trials_of, width, trials)
    time = f" {duration(used.seconds)} of {duration(used.seconds_of)}{left}"
    yield "time", bar(used.seconds / used.seconds_of, width, time)
    counts = outcome_counts(state.records)
    kinds = [kind for kind in labels.KIND_WORDS if counts.get(kind)]
    parts = [Text(f"{counts[kind]} {labels.KIND_WORDS[kind]}", _STYLES[kind][2]) for kind in kinds]
    line = Text(" · ").join(parts) if parts else Text("none yet", "bright_black")
    line.no_wrap = False  # many kinds do not fit on one line of 80 columns
    yield "outcomes", line


def _running(
    state: SweepState, now: float, activity: Activity | None, ready_at: float | None
) -> Iterator[tuple[str, RenderableType]]:
    if not state.running:
        idle = stop_words(state.ended.reason) if state.ended else "no trial running"
        yield "now", Text(idle, style="bright_black")
        return
    *others, trial = state.running
    words = labels.labelled_plan(trial.plan, state.spec, omit=labels.fixed_knobs(state.space))
    kind = "validation of trial" if trial.validation else "trial"
    more = f", {plural(len(others), 'more trial')} running" if others else ""
    yield (
        "now",
        Text.assemble(
            (f"{kind} {trial.number}{_place(trial, state)} ", "bold"), (words, "cyan"), more
        ),
    )
    elapsed, deadline = now - max(trial.at, ready_at or 0.0), trial.deadline_seconds
    style = "bold red" if elapsed > deadline else "bright_black"
    time = f"{duration(elapsed)} of at most {duration(deadline)}"
    if activity is not None and activity.trial is None:
        time = "waiting for its workers"
    expected = trial.forecast and labels.forecast_words(trial.forecast, trial.reason)
    forecast = f" · forecast {expected}" if expected else ""
    yield "", Text(f"{time}{forecast} · {reason_words(trial.reason)}", style)


def _place(trial: events.TrialStarted, state: SweepState) -> str:
    """Counts a running trial among those of the budget, or a repeat among repeats."""
    if trial.validation or isinstance(trial.reason, ChecksMachine):
        return ""
    if trial.is_repeat:
        repeats = len(repeats_at_the_end(state.records)) + 1
        most = max(repeats, most_repeats(state.records, state.spec))
        return f" [measuring the leaders again, {repeats} of at most {most}]"
    before = sum(other.number < trial.number for other in state.running)
    used = progress(state, trial.at)
    return f" [{used.trials + before + 1} of {used.trials_of}]"


def _best(state: SweepState) -> Iterator[tuple[str, RenderableType]]:
    best = state.best
    if best is None:
        yield "best", Text("no feasible plan yet", style="bright_black")
        return
    words = labels.labelled_plan(best.plan, state.spec, omit=labels.fixed_knobs(state.space))
    yield "best", Text.assemble((f"trial {best.number} ", "bold"), (words, "green"))
    gain = speedup(best, baseline_record(state))
    comparison = "" if gain is None else f" · {gain.value:.2f} x the baseline"
    if best.plan == state.space.baseline:
        comparison = " · the baseline"
    yield (
        "",
        Text.assemble((labels.outcome_words(best.outcome), "bold green"), (comparison, "bold")),
    )


def _memory(state: SweepState, width: int) -> Iterator[tuple[str, RenderableType]]:
    last = next((r for r in reversed(state.records) if isinstance(r.outcome, Measured)), None)
    heading = "memory"
    for name, record in (("best", state.best), ("last", last)):
        if record is not None and (name, record) != ("last", state.best):
            memory = memory_of(record)
            used = f"{gib(memory.peak_bytes)} of {gib(memory.limit_bytes)} GiB"
            label = f" {name} {used}, {100 * memory.share:.0f} %"
            usable = state.objective.usable_bytes(memory.limit_bytes) / memory.limit_bytes
            yield heading, bar(memory.share, width, label, usable)
            heading = ""


def _outcomes(state: SweepState, most: int, width: int) -> Iterator[RenderableType]:
    if not state.records:
        return
    table = Table.grid(padding=(0, 2), expand=True)
    table.add_column(justify="right", style="bright_black", no_wrap=True)
    table.add_column(no_wrap=True, overflow="ellipsis")
    table.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
    for record in reversed(state.records[-most:]):
        words = labels.labelled_plan(record.plan, state.spec, omit=labels.fixed_knobs(state.space))
        table.add_row(str(record.number), Text(words), _outcome(record, state, width >= _WIDE))
    more = len(state.records) - most
    older = f" ({more} earlier)" if more > 0 else ""
    title = f"last {plural(min(most, len(state.records)), 'outcome')}{older}"
    yield Rule(Text(title), style="bright_black", align="left")
    yield table


def _outcome(record: Record, state: SweepState, wide: bool) -> Text:
    outcome = record.outcome
    text = Text(labels.record_words(record), _STYLES[outcome.kind][2])
    if not isinstance(outcome, Measured):
        return text
    memory, forecast = outcome.memory, ""
    if record.forecast is not None:
        share = record.forecast.peak_bytes.value / memory.limit_bytes
        forecast = f" (forecast {100 * share:.0f} %)"
    if wide:
        text.append(f", peak {100 * memory.share:.0f} %{forecast}", "bright_black")
    lack = shortcoming(record, state)
    return text.append(f", {lack}" if lack else "", "bold red")


@final
class LiveView(AbstractView):
    """Dashboard that rich redraws from the last state a few times a second until it is closed.

    Closing it erases the dashboard, because the final report follows.
    """

    def __init__(self, console: Console, clock: Callable[[], float] = time.time) -> None:
        self._console = console
        self._clock = clock
        self._state: SweepState | None = None
        self._activity: Activity | None = None
        self._ready_at: float | None = None  # of the first workers
        self._live = Live(
            console=console,
            get_renderable=self._draw,
            refresh_per_second=REFRESHES_PER_SECOND,
            transient=True,
            vertical_overflow="crop",
        )

    def on_event(self, event: events.Event, state: SweepState) -> None:
        """Stores the state for the next refresh."""
        if isinstance(event, events.SweepStarted):
            if event.understanding is not None:
                self._console.print(labelled_rows(understood_rows(event.understanding)))
            if words := _resumed_words(state):
                self._console.print(Text(words))
        self._state, self._activity = state, None
        self._live.start()

    def on_activity(self, activity: Activity) -> None:
        """Stores the activity for the next refresh."""
        self._activity = activity
        if self._ready_at is None and activity.trial is not None:
            self._ready_at = activity.at
        self._live.start(refresh=True)  # the first word, before long imports

    def close(self) -> None:
        """Erases the dashboard."""
        self._live.stop()

    def _draw(self) -> RenderableType:
        if self._state is None:
            return Text(labels.activity_words(self._activity) if self._activity else "")
        width, height = self._console.size
        size = {"width": width, "height": height}
        now, doing, ready_at = self._clock(), self._activity, self._ready_at
        return dashboard(self._state, now=now, activity=doing, ready_at=ready_at, **size)


@final
class PlainView(AbstractView):
    """Log of a sweep: lines with the time since the start, for a stream or a function.

    What a trial does has a line every `pause_seconds` at most.
    """

    def __init__(
        self, show: TextIO | Callable[[str], None], pause_seconds: float = LOG_PAUSE_SECONDS
    ) -> None:
        self._show = show if callable(show) else partial(_write, show)
        self._pause_seconds = pause_seconds
        self._began_at: float | None = None
        self._last: tuple[str, float] = "", -inf  # line of an activity, and its time

    def on_event(self, event: events.Event, state: SweepState) -> None:
        """Hands over the lines of an event."""
        self._began_at = self._began_at or state.started_at
        is_over = isinstance(event, events.SweepEnded)  # nothing that comes late replaces its line
        self._last = self._last[0], inf if is_over else event.at
        for line in lines(event, state):
            self._say(line, event.at)

    def on_activity(self, activity: Activity) -> None:
        """Hands over a line, unless it said the same, or a trial's last line was just now."""
        self._began_at = self._began_at or activity.at
        line, (last, at) = labels.activity_words(activity), self._last
        if line != last and (activity.trial is None or activity.at - at >= self._pause_seconds):
            self._last = line, activity.at
            self._say(line, activity.at)

    def _say(self, line: str, at: float) -> None:
        stamp = _clock(at - (self._began_at or at))
        # the reason of a crash may span lines, but a log is read line by line
        self._show(without_controls(" ".join(f"{stamp} {line}".split())))

    def close(self) -> None:
        """Does nothing: every line has been shown."""


def _write(stream: TextIO, line: str) -> None:
    encoding = stream.encoding or "utf-8"
    # a plus-minus sign must not stop a sweep whose log is ASCII
    stream.write(line.encode(encoding, "replace").decode(encoding) + "\n")
    stream.flush()


def notebook_view() -> PlainView:
    """Makes a view of one line below a notebook's cell, which replaces itself."""
    from IPython.display import display  # runs, since this is a notebook

    # Ray would ask there for ipywidgets, with which nothing is drawn
    logging.getLogger("ray.widgets").setLevel(logging.WARNING)
    handle = display({"text/plain": "starting"}, raw=True, display_id=True)
    return PlainView(lambda line: handle.update({"text/plain": line}, raw=True), 0.0)


def lines(event: events.Event, state: SweepState) -> Iterator[str]:
    """Describes an event in one line or a few."""
    match event:
        case events.SweepStarted():
            yield from _started(event, state)
        case events.GroupStarted(world_size=ranks, fingerprint=fingerprint):
            yield (
                f"{plural(ranks, 'worker')} ready on {plural(fingerprint.hosts, 'host')}:"
                f" {fingerprint.device} {fingerprint.device_name}"
            )
        case events.TrialStarted(validation=True, number=number, plan=plan):
            words = labels.labelled_plan(plan, state.spec)
            yield f"validation of trial {number} starts in a fresh worker group: {words}"
        case events.TrialStarted(number=number, plan=plan, reason=reason, forecast=forecast):
            expected = f"; forecast {labels.forecast_words(forecast, reason)}" if forecast else ""
            words = labels.labelled_plan(plan, state.spec)
            why = f"({reason_words(reason)}{expected})"
            yield f"trial {number} starts: {words} {why}{_place(event, state)}"
        case events.TrialEnded(record=record) if record.validation:
            yield _validation_ended(record, state)
        case events.TrialEnded(record=record):
            yield _ended(record, state, event.at)
        case events.Noted(note=note):
            yield f"note: {note_words(note)}"
        case events.SweepEnded(reason=reason):
            yield f"sweep ended: {stop_words(reason)}; {_tally(state)}"


def _resumed_words(state: SweepState) -> str:
    """Says what earlier runs of the study have measured; empty if there were none."""
    if not state.records:
        return ""
    trials = f"resuming after {plural(len(state.records), 'earlier trial')}"
    if (best := state.best) is None:
        return f"{trials}, without a feasible plan so far"
    validated = ", validated" if state.validated is not None else ""
    words = labels.outcome_words(best.outcome)
    return f"{trials}; best so far: trial {best.number}, {words}{validated}"


def _started(event: events.SweepStarted, state: SweepState) -> Iterator[str]:
    ruled_out = sum(count for _, count in event.space.ruled_out)
    yield (
        f"study {event.study}: {plural(len(event.space.candidates), 'plan')} to choose from,"
        f" {ruled_out:,} ruled out; budget {plural(event.spec.budget.trials, 'trial')} or"
        f" {duration(60 * event.spec.budget.minutes)}"
    )
    if event.understanding is not None:
        label = ""
        for part, words in understood_rows(event.understanding):
            label = part or label
            yield f"{label}: {words}"
    yield f"baseline: {labels.plan_words(event.space.baseline)}"
    if event.memory_limit_bytes:
        yield f"memory limit {gib(event.memory_limit_bytes)} GiB per rank"
    if words := _resumed_words(state):
        yield words


def _ended(record: Record, state: SweepState, now: float) -> str:
    parts = [labels.record_words(record)]
    if isinstance(record.outcome, Measured):
        memory = record.outcome.memory
        forecast = ""
        if record.forecast is not None:
            forecast = f" (forecast {gib(record.forecast.peak_bytes.value)})"
        share = f"{100 * memory.share:.0f} % of the limit"
        parts.append(f"peak {gib(memory.peak_bytes)} GiB{forecast}, {share}")
        if not state.objective.keeps_memory(memory):
            parts.append("over usable memory")
        gain = speedup(record, baseline_record(state))
        if gain is not None and record.plan != state.space.baseline:
            parts.append(f"{gain.value:.2f} x the baseline")
    if state.best is not None and record.number == state.best.number:
        parts.append("best so far")
    used = progress(state, now)
    left = "" if used.left_seconds is None else f", about {duration(used.left_seconds)} left"
    tally = f"{used.trials} of {used.trials_of}{left}"
    if isinstance(record.reason, ChecksMachine):
        tally = "a check of the machine"
    elif is_repeat(record):
        repeats = len(repeats_at_the_end(state.records))
        most = max(repeats, most_repeats(state.records, state.spec))
        tally = f"repeat {repeats} of at most {most}"
    return f"trial {record.number} ended: {'; '.join(parts)} [{tally}]"


def _validation_ended(validation: Record, state: SweepState) -> str:
    words = (
        f"the validation of trial {validation.number} {labels.validation_words(validation, state)}"
    )
    failed = validation.number in state.failed_validations
    if not failed or (following := state.next_to_validate) is None:
        return words
    return f"{words}; trial {following.number} is validated instead"


def _tally(state: SweepState) -> str:
    best = state.best
    tally = labels.counts_words(outcome_counts(state.records)) or "no trials"
    if best is None:
        return f"{tally}; no plan is feasible"
    validated = ", validated" if state.validated is not None else ""
    words = labels.labelled_plan(best.plan, state.spec)
    return f"{tally}; best is trial {best.number}{validated}: {words}"


def _clock(seconds: float) -> str:
    whole = max(int(seconds), 0)
    return f"[{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}]"


def make_view(plain: bool = False) -> AbstractView:
    """Makes a dashboard if stdout is a terminal that can move its cursor, else plain lines.

    In a notebook it is one line, and plain lines for a command of a cell.

    Args:
        plain: Writes lines even on a terminal.
    """
    if in_notebook() and not plain:
        return notebook_view()
    console = SafeConsole()
    if plain or not console.is_terminal or console.is_dumb_terminal or below_notebook():
        return PlainView(sys.stdout)
    return LiveView(console)
