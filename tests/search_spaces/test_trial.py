"""`trial`: every kind of outcome survives JSON; other JSON is rejected."""

import json
from typing import get_args

import pytest
from pydantic import ValidationError

from search_spaces.trial import (
    Cancelled,
    Crashed,
    Diverged,
    DoesNotTrain,
    DriverDied,
    Estimate,
    Interruption,
    Measured,
    NodesLost,
    NoRoom,
    Outcome,
    OutOfMemory,
    Refused,
    Stopped,
    TimedOut,
    WorkersFailed,
    outcome_from_json,
    outcome_to_json,
)
from tests.outcomes import make_conditions, make_costs, make_measured

COSTS = make_costs(residual_bytes=4096)
MEASURED = make_measured(flops_per_step=None, conditions=make_conditions(("thermal", "power")))
OUT_OF_MEMORY = OutOfMemory(
    where="device",
    wanted_bytes=150,
    limit_bytes=100,
    rank=0,
    phase="backward",
    detail="no",
    costs=None,
)
OUTCOMES: tuple[Outcome, ...] = (
    MEASURED,
    OUT_OF_MEMORY,
    TimedOut(deadline_seconds=60.0, detail="killed"),
    Crashed(cause="exception", rank=1, phase="forward", detail="boom", trace="Traceback"),
    Refused(rule="cluster_has_room", detail="too many"),
    Diverged(step=3, loss="nan", costs=COSTS),
    DoesNotTrain(norm="0", costs=COSTS),
    Cancelled(cause=Stopped(by="Ctrl-C")),
)
INTERRUPTIONS: tuple[Interruption, ...] = (
    Stopped(by="SIGTERM"),
    DriverDied(),
    WorkersFailed(outcome=Crashed(cause="worker_died", rank=1, phase="forward", detail="so")),
    NodesLost(nodes=("a", "b")),
    NoRoom(ranks=4, minutes=10.0, available=((2, 1),)),
)


def test_every_kind_is_here() -> None:
    assert {type(outcome) for outcome in OUTCOMES} == set(get_args(Outcome))
    assert {type(cause) for cause in INTERRUPTIONS} == set(get_args(Interruption))


@pytest.mark.parametrize(
    "outcome",
    [*OUTCOMES, *(Cancelled(cause=cause) for cause in INTERRUPTIONS)],
    ids=lambda outcome: outcome.kind,
)
def test_json_and_back(outcome: Outcome) -> None:
    text = json.dumps(outcome_to_json(outcome), allow_nan=False)

    assert outcome_from_json(json.loads(text)) == outcome


@pytest.mark.parametrize(
    "dumped", [{}, {"kind": "exploded"}, {"kind": "diverged"}, {"kind": "timed_out", "detail": 1}]
)
def test_refuses_what_is_no_outcome(dumped: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        outcome_from_json(dumped)


@pytest.mark.parametrize(
    ("wanted", "limit", "excess"),
    [(150, 100, 0.5), (90, 100, 0.0), (None, 100, None), (1, None, None)],
)
def test_excess_is_what_was_wanted_over_the_limit(
    wanted: int | None, limit: int | None, excess: float | None
) -> None:
    outcome = OutOfMemory(
        where="host",
        wanted_bytes=wanted,
        limit_bytes=limit,
        rank=None,
        phase="build",
        detail="",
        costs=None,
    )

    assert outcome.excess == excess


def test_an_estimate_lies_in_its_interval() -> None:
    with pytest.raises(ValueError, match="low <= value <= high"):
        Estimate(value=1.0, low=1.5, high=2.0)


def test_a_measurement_of_before_retries_were_counted_has_none() -> None:
    dumped = outcome_to_json(make_measured(40.0, share=0.6))
    del dumped["memory"]["allocator_retries"]
    outcome = outcome_from_json(dumped)

    assert isinstance(outcome, Measured)
    assert outcome.memory.allocator_retries == 0
    assert outcome.memory.reserved_share == pytest.approx(0.54, abs=0.001)
