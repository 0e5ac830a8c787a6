"""Verdicts on sweeps, as tables."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.core.reasons import ChecksMachine
from orchestrator.core.records import Record
from search_spaces.trial import Crashed, CrashKind, Outcome, TimedOut
from tests.orchestrator.core.values import state_after
from tests.outcomes import make_measured, make_oom
from tests.rigs.judge import (
    ENDS,
    History,
    Injected,
    Line,
    Verdict,
    judge,
    obeyed,
    struck,
    under_way,
)

TRIALS = state_after([make_measured(10.0), make_measured(20.0), make_oom()]).records
OOM = Injected(kind="oom", attempts=(2,))


def line(record: Record, rate: float, *, validation: bool = False) -> Line:
    return Line(
        number=record.number, plan=record.plan.key, validation=validation, samples_per_second=rate
    )


def started(record: Record) -> dict[str, Any]:
    return {"event": "trial_started", "trial": record.number, "plan_key": record.plan.key}


def ended(record: Record, outcome: str | None = None) -> dict[str, Any]:
    kind = outcome or record.outcome.kind
    return {**started(record), "event": "trial_ended", "outcome": kind}


def events_of(records: Sequence[Record]) -> list[dict[str, Any]]:
    told = [event for record in records for event in (started(record), ended(record))]
    return [{"event": "sweep_started"}, *told]


SOUND = History(
    events=events_of(TRIALS),
    journal=[line(TRIALS[0], 10.0), line(TRIALS[1], 20.0)],
    records=TRIALS,
    injected=[OOM],
)


def crashed(cause: CrashKind) -> Crashed:
    return Crashed(cause=cause, rank=None, phase="running the trial", detail="")


def with_outcome(number: int, outcome: Outcome) -> History:
    """The sound history, but for an outcome that the driver has said and stored."""
    records = [replace(r, outcome=outcome) if r.number == number else r for r in TRIALS]
    return replace(SOUND, records=records, events=events_of(records))


def test_what_agrees_is_clean() -> None:
    assert judge(SOUND) == Verdict(lost=(), duplicated=(), invented=(), unexplained=())
    validated = [*SOUND.journal, line(TRIALS[1], 99.0, validation=True)]
    assert judge(replace(SOUND, journal=validated)).clean


@pytest.mark.parametrize("kind", sorted(ENDS))
def test_what_was_acknowledged_is_lost_whatever_struck_it(kind: str) -> None:
    kill = Injected(kind=kind, attempts=(1,))
    verdict = judge(replace(SOUND, records=[TRIALS[0], TRIALS[2]], injected=[OOM, kill]))

    assert verdict.lost == ("trial 1 was acknowledged as measured, and is not stored",)


def interrupted(*kinds: str) -> History:
    """Trial 1 was finished and not acknowledged; trial 3 has its plan again."""
    again = replace(TRIALS[1], number=3)
    return replace(
        SOUND,
        events=[*events_of([TRIALS[0], TRIALS[2], again]), started(TRIALS[1])],
        journal=[*SOUND.journal, line(again, 20.0)],
        records=[TRIALS[0], TRIALS[2], again],
        injected=[OOM, *(Injected(kind=kind, attempts=(1,)) for kind in kinds)],
    )


def test_what_went_with_a_process_and_was_run_again_is_not_lost() -> None:
    lost = ("trial 1 was measured, and the study has no outcome of it",)

    assert judge(interrupted("driver_killed")).clean
    assert judge(interrupted()).lost == lost
    assert judge(interrupted("driver_stopped")).lost == lost
    never_again = interrupted("driver_killed")
    assert judge(replace(never_again, records=[TRIALS[0], TRIALS[2]])).lost


def test_the_fault_of_another_attempt_excuses_nothing() -> None:
    """It may be of the same moment: what counts is whom it struck."""
    elsewhere = Injected(kind="driver_killed", attempts=(0,))

    assert judge(replace(interrupted(), injected=[OOM, elsewhere])).lost


def test_what_ended_after_its_deadline_is_not_lost() -> None:
    late = with_outcome(1, TimedOut(deadline_seconds=1.0, detail="so"))
    stop = Injected(kind="rank_stopped", attempts=(1,))

    assert judge(replace(late, injected=[OOM, stop])).clean
    assert judge(late).unexplained


def test_a_plan_that_runs_again_to_check_the_machine_is_not_duplicated() -> None:
    again = replace(TRIALS[0], number=7, reason=ChecksMachine(trial=0, suspect=2))
    history = replace(
        SOUND,
        events=[*SOUND.events, started(again), ended(again)],
        journal=[*SOUND.journal, line(again, 10.0)],
        records=[*TRIALS, again],
    )

    assert judge(history).clean


def test_a_plan_with_two_outcomes_is_duplicated() -> None:
    twice = replace(TRIALS[0], number=7)
    events = [*SOUND.events, started(twice), ended(twice)]
    journal = [*SOUND.journal, line(twice, 10.0)]
    verdict = judge(replace(SOUND, events=events, journal=journal, records=[*TRIALS, twice]))

    assert verdict.duplicated == (f"plan {TRIALS[0].plan.key} has 2 outcomes",)
    assert verdict.invented == ()


def test_an_attempt_that_ran_twice_is_duplicated() -> None:
    verdict = judge(replace(SOUND, journal=[*SOUND.journal, SOUND.journal[0]]))

    assert verdict.duplicated == ("trial 0 was run 2 times",)


@pytest.mark.parametrize("journal", [SOUND.journal[:1], [SOUND.journal[0], line(TRIALS[1], 20.5)]])
def test_what_no_worker_measured_is_invented(journal: list[Line]) -> None:
    kill = Injected(kind="driver_killed", attempts=(1,))

    assert judge(replace(SOUND, journal=journal, injected=[OOM, kill])).invented == (
        "no worker measured trial 1 at 20 samples/s",
    )


def test_what_was_never_handed_out_is_invented() -> None:
    events = [event for event in SOUND.events if event.get("trial") != 1]

    assert judge(replace(SOUND, events=events)).invented == (
        "trial 1 is stored, and was never handed out",
    )


def test_what_is_stored_otherwise_than_it_was_said_is_invented() -> None:
    events = [ended(TRIALS[2], "diverged") if e == ended(TRIALS[2]) else e for e in SOUND.events]

    assert judge(replace(SOUND, events=events)).invented == (
        "trial 2 was acknowledged as diverged, and is stored as out_of_memory",
    )


@pytest.mark.parametrize(
    ("outcome", "kinds", "explained"),
    [
        (crashed("worker_died"), ["rank_killed"], False),  # it would have run once more
        (crashed("worker_died"), ["raise"], False),
        (crashed("exception"), ["raise"], True),
        (crashed("exception"), ["rank_killed", "nan"], False),
        (crashed("disk_full"), ["disk_full"], True),
        (crashed("driver_lost"), ["driver_killed", "driver_ended"], False),
    ],
)
def test_a_crash_needs_a_fault_of_its_own_kind(
    outcome: Outcome, kinds: list[str], explained: bool
) -> None:
    faults = [OOM, *(Injected(kind=kind, attempts=(1,)) for kind in kinds)]
    verdict = judge(replace(with_outcome(1, outcome), injected=faults))

    assert verdict.clean is explained
    assert bool(verdict.unexplained) is not explained


@pytest.mark.parametrize("cause", ["worker_died", "start_failed"])
def test_a_plan_is_blamed_for_two_deaths_by_two_faults(cause: CrashKind) -> None:
    """The first attempt of the plan was 1, the second 3."""
    twice = interrupted("rank_killed")
    (again,) = (one for one in twice.records if one.number == 3)
    dead = replace(again, outcome=crashed(cause))
    events = [ended(dead) if event == ended(again) else event for event in twice.events]
    blamed = replace(twice, events=events, records=[TRIALS[0], TRIALS[2], dead])
    second = Injected(kind="actor_killed", attempts=(3,))

    assert judge(replace(blamed, injected=[*twice.injected, second])).clean
    assert judge(blamed).unexplained
    one_fault = Injected(kind="rank_killed", attempts=(1, 3))  # under way, and the next
    assert judge(replace(blamed, injected=[OOM, one_fault])).unexplained


def test_a_fault_strikes_what_is_under_way_and_perhaps_the_next() -> None:
    events = events_of(TRIALS)
    first, between = 2, 3  # in the middle of trial 0, and after it

    assert under_way(events[:first]) == (0,)
    assert struck(events, "rank_killed", first, first).attempts == (0, 1)
    assert struck(events, "rank_killed", between, between).attempts == (1,)
    assert struck(events, "driver_stopped", first, first).attempts == (0,)
    assert struck(events, "driver_stopped", first, 6).attempts == (0, 1, 2)
    assert under_way([*events[:first], {"event": "sweep_started"}]) == ()


def test_an_order_strikes_the_attempt_that_takes_it(tmp_path: Path) -> None:
    order = tmp_path / "nan-0a.order"
    order.touch()
    assert not obeyed(tmp_path)  # given, and not taken

    order.rename(order.with_suffix(".taken")).write_text("17")

    assert obeyed(tmp_path) == [Injected(kind="nan", attempts=(17,))]
