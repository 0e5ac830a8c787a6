"""The simulated cluster, by hand."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from benchmarks.virtual import EPOCH, AbstractFront, Clock, simulate


class Fixed(AbstractFront):
    """Trials of so many seconds, each of which takes the driver some."""

    def __init__(self, clock: Clock, seconds: Sequence[float], ask_seconds: float) -> None:
        self._clock, self._left, self._ask_seconds = clock, list(seconds), ask_seconds
        self.told: list[tuple[int, float, float]] = []

    def ask(self, group: int) -> float | None:
        if not self._left:
            return None
        self._clock.pass_by(self._ask_seconds)
        return self._left.pop(0)

    def tell(self, group: int, began: float, ended: float) -> None:
        self.told.append((group, began - EPOCH, ended - EPOCH))


def test_each_group_gets_its_next_trial_when_the_driver_has_time() -> None:
    """Asks take 1 s: group 0 runs 1 to 11, group 1 runs 2 to 22 and 0 again from 12, when asked."""
    clock = Clock()
    front = Fixed(clock, [10, 20, 30], ask_seconds=1)

    tally = simulate(front, 2, clock)

    assert front.told == [(0, 1, 11), (1, 2, 22), (0, 12, 42)]
    # from 11, when the first has ended, to 12, when the last has begun: one of two groups
    assert tally.busy_share == pytest.approx(1 / 2)
    assert tally.trial_seconds == 20


def test_a_driver_that_is_slower_than_its_groups_keeps_few_of_them_busy() -> None:
    """A trial of 10 s for each 5 s of the driver: two groups of eight, however many there are."""
    clock = Clock()
    tally = simulate(Fixed(clock, [10] * 100, ask_seconds=5), 8, clock)

    assert tally.busy_share == pytest.approx(2 / 8, rel=0.02)


def test_a_driver_of_no_time_keeps_all_busy() -> None:
    clock = Clock()

    assert simulate(Fixed(clock, [10, 7, 5] * 20, 0), 6, clock).busy_share == pytest.approx(1)


def test_the_clock_runs_on_only_while_it_is_entered() -> None:
    now = [100.0]
    clock = Clock(lambda: now[0])
    now[0] += 5
    assert clock() == EPOCH
    with clock:
        now[0] += 2
        assert clock() == EPOCH + 2
    now[0] += 5

    assert clock() == EPOCH + 2
    assert clock.ran_seconds == 2
    clock.move_to(EPOCH + 1)
    assert clock() == EPOCH + 2


def test_a_group_whose_trial_is_over_goes_before_one_that_never_had_any() -> None:
    """Asks take 5 s and trials 4: group 0 is free at 9, and group 2 still waits for its first."""
    clock = Clock()
    front = Fixed(clock, [4, 4, 4], ask_seconds=5)
    simulate(front, 3, clock)

    assert [group for group, _, _ in front.told] == [0, 1, 0]
