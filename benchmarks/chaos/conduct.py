"""Checks of a sweep beyond its records: how drivers ended, how long it took, the answer.

Processes are looked for elsewhere; their sockets end with them.
"""

import signal
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from statistics import mean
from typing import Any

from orchestrator.cli.exit_codes import ExitCode
from orchestrator.core.records import Record
from search_spaces.trial import Measured
from tests.rigs.judge import Line

TRIALS = 20  # the budget of each sweep
STARTING = "driver_starting"  # no fault: that the driver's sweep had not begun when it met one
# in which an attempt has ended: its own time, and what it takes to notice that nobody ends it
ATTEMPT_SECONDS = 400.0
_ANSWER_SHARE = 0.75  # of the fastest plan's speed that the answer's has: trials are short
_KILLS = frozenset({"driver_killed", "few_descriptors", "power_lost", "postgres_restored"})
# A sweep goes on without MLflow, but none begins: these end a driver that meets them as it starts
_MLFLOW_AWAY = frozenset({"mlflow_restarted", "mlflow_hangs", "mlflow_fails", "mlflow_is_late"})
# what is no reason for a driver to give up: others meet one rank, or nobody
_BORNE = frozenset(
    (
        *("loss_is_nan", "past_the_budget", "memory_hog", "endless_loop", "model_raises"),
        *("driver_killed", "driver_ended", "driver_stopped", "second_driver", "rank_slowed"),
        *("clock_jumps", "records_damaged", "disk_slow", "mlflow_asks_to_log_in", STARTING),
        *_MLFLOW_AWAY,
    )
)


def wrong_exits(codes: Sequence[int], faults: Sequence[tuple[int, str]]) -> Iterator[str]:
    """Yields what is wrong with how drivers ended.

    Args:
        codes: Of the drivers, in order.
        faults: Each with the number of the driver that it met, counted from 0.
    """
    for number, code in enumerate(codes):
        met = {kind for driver, kind in faults if driver == number}
        earlier = {kind for driver, kind in faults if driver == number - 1}
        starting = earlier | (met if STARTING in met else set())
        match code:
            case ExitCode.DONE:
                right = True
            case ExitCode.INTERRUPTED | ExitCode.TERMINATED:
                right = "driver_ended" in met
            case ExitCode.TRY_AGAIN:
                right = bool((met | earlier) - _BORNE) or "few_descriptors" in earlier
                right |= bool(starting & _MLFLOW_AWAY)
            case ExitCode.USER_ERROR:
                right = "mlflow_asks_to_log_in" in starting  # for its user to mend
            case _:
                right = code == -signal.SIGKILL and bool(met & _KILLS)
        if not right:
            yield f"driver {number + 1} ended with {code}, through {sorted(met) or 'no fault'}"


def slow_attempts(events: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yields the attempts that ended too late, or never while their driver went on."""
    began: dict[int, float] = {}
    for event in events:
        at = datetime.fromisoformat(event["time"]).timestamp()
        match event["event"]:
            case "sweep_started":
                began.clear()
            case "trial_started":
                began[event["trial"]] = at
            case "trial_ended":
                seconds = at - began.pop(event["trial"], at)
                if seconds > ATTEMPT_SECONDS:
                    yield f"trial {event['trial']} took {seconds:.0f} s"
            case "sweep_ended":
                for number in began:
                    yield f"trial {number} never ended"


def beyond_budget(records: Sequence[Record]) -> Iterator[str]:
    """Yields a complaint if more trials were counted than were allowed."""
    if len(records) > TRIALS:
        yield f"{len(records)} trials were counted, of {TRIALS}"


def wrong_answer(
    answer: Mapping[str, Any] | None, records: Sequence[Record], journal: Sequence[Line]
) -> Iterator[str]:
    """Yields a complaint unless the answer is a measured plan that is about the fastest.

    Args:
        answer: The trial that the report names.
        records: Of the study.
        journal: What ranks measured.
    """
    failed = {one.plan for one in records if not isinstance(one.outcome, Measured)}  # perhaps once
    measured = {one.number: one.plan.key for one in records if one.plan not in failed}
    rates = defaultdict[str, list[float]](list)
    for line in journal:
        if line.number in measured and not line.validation:
            rates[line.plan].append(line.samples_per_second)
    if not rates:
        return
    speed = {key: mean(each) for key, each in rates.items()}
    key = None if answer is None else measured.get(answer["trial"])
    if key is None:
        yield f"the answer is {answer}, and plans were measured"
    elif speed[key] < _ANSWER_SHARE * max(speed.values()):
        yield f"the answer has {speed[key]:.0f} samples/s, the fastest {max(speed.values()):.0f}"
