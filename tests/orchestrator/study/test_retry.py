"""Tests of `RetryPolicy` with a clock of their own."""

from collections.abc import Callable

import pytest

from orchestrator.study.retry import Clock, RetryPolicy, Unavailable


class Hours:
    """A clock that advances when it sleeps."""

    def __init__(self) -> None:
        self.now = 0.0
        self.pauses: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds

    @property
    def clock(self) -> Clock:
        return Clock(now=lambda: self.now, sleep=self.sleep)


def patience(hours: Hours, seconds: float) -> tuple[RetryPolicy, list[str]]:
    said: list[str] = []
    made = RetryPolicy("the store", seconds, hours.clock)
    made.say = said.append
    return made, said


def away_for(hours: Hours, seconds: float) -> Callable[[int], int]:
    until = hours.now + seconds

    def act(attempt: int) -> int:
        if hours.now < until:
            raise Unavailable("connection refused")
        return attempt

    return act


def test_short_absences_are_not_told_of() -> None:
    hours = Hours()
    ours, said = patience(hours, 60)

    assert ours.call(away_for(hours, 1.5)) == 3
    assert hours.pauses == [0.25, 0.5, 1.0]
    assert said == []


def test_long_ones_are_told_of_once_and_their_end_too() -> None:
    hours = Hours()
    ours, said = patience(hours, 600)

    ours.call(away_for(hours, 100))

    assert max(hours.pauses) == 15.0
    assert said == [
        "the store is unavailable (connection refused); retrying for up to 10 minutes",
        "the store is back after 106 s",
    ]


def test_it_ends_and_then_tries_once_a_call_until_one_succeeds() -> None:
    hours = Hours()
    ours, _ = patience(hours, 60)
    gone = away_for(hours, 1000)
    with pytest.raises(Unavailable):
        ours.call(gone)
    assert sum(hours.pauses) == 60

    with pytest.raises(Unavailable):
        ours.call(gone)
    assert sum(hours.pauses) == 60

    assert ours.call(lambda _: "back") == "back"
    ours.call(away_for(hours, 10))
    assert sum(hours.pauses) > 60
