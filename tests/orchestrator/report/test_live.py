"""The live view at two widths, and the plain view without a terminal."""

import io
from contextlib import closing
from dataclasses import replace

import pytest
from rich.console import Console

from orchestrator.core.events import SweepEnded, SweepStarted, TrialEnded, TrialStarted
from orchestrator.core.reasons import Remeasures, SameFailure, Sampled, TrialReason
from orchestrator.core.state import SweepState, advance
from orchestrator.report.live import LiveView, PlainView, dashboard, make_view
from orchestrator.report.live import lines as plain_lines_of
from orchestrator.report.sweep_tables import progress
from search_spaces.trial import Activity, ActivityKind, Estimate
from tests.orchestrator.records import (
    BEGAN,
    make_plan,
    make_records,
    make_space,
    make_spec,
    make_state,
    sweep,
)
from tests.outcomes import every_outcome, make_expectation, make_measured, make_oom

STARTED = TrialStarted(
    number=11,
    plan=make_plan(),
    reason=Sampled(sampler="tpe"),
    deadline_seconds=60.0,
    at=BEGAN + 120,
)


def busy_state() -> SweepState:
    return advance(make_state(every_outcome()), STARTED)


def shown(state: SweepState, width: int, height: int = 24, after: float = 134) -> str:
    console = Console(width=width, height=height, record=True, file=io.StringIO())
    console.print(dashboard(state, now=BEGAN + after, width=width, height=height))
    return console.export_text()


@pytest.mark.parametrize(("width", "height"), [(80, 24), (160, 40)])
def test_the_picture_tells_all_and_fits(width: int, height: int) -> None:
    lines = shown(busy_state(), width, height).splitlines()
    text = "\n".join(lines)

    assert len(lines) <= height
    assert max(map(len, lines)) <= width
    for part in (
        "trial 11 [12 of 24] ddp micro 4 x 2 ckpt 50 % sdpa packed",
        "14 s of at most 1 min",
        "proposed by tpe",
        "2.29 x the baseline",
        "0.400 of 0.500 GiB, 80 %",
        "11 of 24",
        "2 min 14 s of 10 min, about 2 min 25 s left",
        "4 measured · 2 out of memory",
        "crashed in build",
        "note: the group was replaced after a crash",
        "all fp32",
    ):
        assert part in text


def started(number: int, reason: TrialReason) -> TrialStarted:
    """Makes a trial whose forecast is 93 % likely to fit."""
    return TrialStarted(
        number=number,
        plan=make_plan(),
        reason=reason,
        deadline_seconds=60.0,
        at=BEGAN + 40,
        forecast=make_expectation(12.34, 0.9),
    )


def test_forecasts_stand_beside_what_was_measured() -> None:
    state = make_state([make_measured(41.2), make_oom(1.31)])
    expected = [make_expectation(39.8), make_expectation(80.0, 1.2)]
    records = tuple(
        replace(record, forecast=forecast)
        for record, forecast in zip(state.records, expected, strict=True)
    )
    state = replace(state, records=records)
    trial = started(2, Sampled(sampler="tpe"))
    running = advance(state, trial)

    wide, narrow = shown(running, 160), shown(running, 80)
    assert "41.20 samples/s ± 1.5 % (forecast 39.8), peak 60 % (forecast 50 %)" in wide
    assert "wanted 131 % of the limit (forecast 0.600 GiB, 93 % likely to fit)" in wide
    assert "forecast 12.3 samples/s, 0.450 GiB, 93 % likely to fit" in wide
    assert "41.20 samples/s ± 1.5 % (forecast 39.8)" in narrow
    (ended,) = plain_lines_of(TrialEnded(record=state.records[0], at=BEGAN + 40), state)
    assert "41.20 samples/s ± 1.5 % (forecast 39.8); peak 0.300 GiB (forecast 0.250), 60" in ended
    (begun,) = plain_lines_of(trial, running)
    assert "(proposed by tpe; forecast 12.3 samples/s, 0.450 GiB, 93 % likely to fit)" in begun


def test_the_first_moments_have_a_picture_too() -> None:
    text = shown(make_state([]), 80, after=1)

    assert "no feasible plan yet" in text
    assert "0 of 24" in text


def test_live_view_draws_and_takes_its_picture_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")  # a dumb terminal shows no live view
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=100, height=30)
    view = LiveView(console, clock=lambda: BEGAN + 30)
    spec = make_spec()
    space = make_space(spec)
    for event, state in sweep(spec, space, make_records(space, [make_measured(20.0)])):
        view.on_event(event, state)
    view.close()
    view.close()

    assert "20.00 samples/s" in stream.getvalue()
    assert stream.getvalue().endswith("\x1b[2K")  # the last line it drew is erased


MEASURING = Activity(
    kind=ActivityKind.MEASURING,
    trial=11,
    count=7,
    most=50,
    samples_per_second=Estimate(value=31.2, low=30.3, high=32.1),
    at=BEGAN + 5,
)
MEASURING_WORDS = "trial 11: measuring, step 7 of at most 50, 31.2 ± 0.9 samples/s"


def test_a_repeat_is_counted_among_the_repeats() -> None:
    again = replace(STARTED, reason=Remeasures(trial=0))
    state = advance(make_state([make_measured(20.0)], make_spec(validation={"repeats": 10})), again)

    assert "trial 11 [measuring the leaders again, 1 of at most 10]" in shown(state, 110)
    (line,) = plain_lines_of(again, state)
    assert line.endswith("[measuring the leaders again, 1 of at most 10]")


def test_a_view_talks_before_there_is_a_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    stream, log = io.StringIO(), io.StringIO()
    console = Console(file=stream, force_terminal=True, width=100, height=30)
    reading = Activity(kind=ActivityKind.READING_MODEL, at=BEGAN)
    starting = Activity(kind=ActivityKind.STARTING_WORKERS, count=3, most=8, at=BEGAN + 4)
    with closing(LiveView(console)) as view, closing(PlainView(log)) as plain:
        for activity in (reading, starting, starting):
            view.on_activity(activity)
            plain.on_activity(activity)

    assert "starting 8 workers (3 up)" in stream.getvalue()
    first, second = log.getvalue().splitlines()
    assert first == "[0:00:00] reading the model"
    assert second == "[0:00:04] starting 8 workers (3 up)"


def test_what_a_trial_does_is_seen_at_once_but_logged_seldom() -> None:
    log = io.StringIO()
    view = PlainView(log)
    for seconds in range(31):
        view.on_activity(replace(MEASURING, count=seconds, at=BEGAN + seconds))

    steps = [line.split("step ")[1].split()[0] for line in log.getvalue().splitlines()]
    assert steps == ["0", "10", "20", "30"]
    console = Console(width=100, height=24, record=True, file=io.StringIO())
    size = {"width": 100, "height": 24}
    console.print(dashboard(busy_state(), now=BEGAN + 9, activity=MEASURING, **size))
    assert MEASURING_WORDS in console.export_text()


def test_the_time_of_the_budget_begins_when_workers_are_ready() -> None:
    state = make_state([])

    assert progress(state, BEGAN + 50).seconds == 0
    assert progress(state, BEGAN + 50, ready_at=BEGAN + 40).seconds == 10


def test_a_repeated_command_says_what_it_resumes() -> None:
    state = make_state([make_measured(41.2)])
    event = SweepStarted(
        study="demo",
        spec=state.spec,
        space=state.space,
        records=state.records,
        memory_limit_bytes=None,
        at=BEGAN,
    )

    last = list(plain_lines_of(event, state))[-1]
    assert last.startswith("resuming after 1 earlier trial; best so far: trial 0, 41.20 samples/s")


def plain_lines() -> list[str]:
    stream = io.StringIO()
    view = PlainView(stream)
    spec = make_spec()
    space = make_space(spec)
    for event, state in sweep(spec, space, make_records(space, every_outcome())):
        view.on_event(event, state)
    # what groups did is looked up once a second: some of it comes after the end
    view.on_activity(replace(MEASURING, at=BEGAN + 1e6))
    view.close()
    return stream.getvalue().splitlines()


def test_plain_lines_have_no_codes_and_one_line_per_event() -> None:
    lines = plain_lines()

    assert not any("\x1b" in line or "\r" in line for line in lines)
    assert lines[0].startswith("[0:00:00] study demo: ")
    assert sum("starts: " in line for line in lines) == len(every_outcome())
    assert sum("ended: " in line and "trial" in line for line in lines) >= len(every_outcome())
    assert any(
        "[0:00:36] trial 2 ended: 41.20 samples/s ± 1.5 %; peak 0.400 GiB" in line
        and "2.29 x the baseline; best so far [3 of 24" in line
        for line in lines
    )
    assert "sweep ended: the budget of 24 trials is used up" in lines[-1]
    assert "best is trial 2" in lines[-1]


def test_a_reason_of_many_lines_stays_on_one() -> None:
    stream = io.StringIO()
    state = replace(make_state([]), study="x")
    broken = SameFailure(trials=4, cause="exception", error="one\n  two")
    PlainView(stream).on_event(SweepEnded(reason=broken, at=BEGAN), state)

    assert stream.getvalue().count("\n") == 1


def test_a_terminal_gets_the_live_view(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    assert isinstance(make_view(), PlainView)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")

    assert isinstance(make_view(), LiveView)
    assert isinstance(make_view(plain=True), PlainView)
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(make_view(), PlainView)
