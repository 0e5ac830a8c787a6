"""Tests `merge_outcomes`: a cause ranks above its consequences, whichever rank has it."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search_spaces.trial import (
    Cancelled,
    Crashed,
    Diverged,
    Measured,
    Outcome,
    OutOfMemory,
    Stopped,
)
from tests.outcomes import make_conditions, make_costs, make_measured
from workers.outcomes import merge_outcomes


def out_of_memory(rank: int, wanted_bytes: int | None, residual_bytes: int = 0) -> OutOfMemory:
    return OutOfMemory(
        where="device",
        wanted_bytes=wanted_bytes,
        limit_bytes=100,
        rank=rank,
        phase="forward",
        detail="no room",
        costs=make_costs(residual_bytes=residual_bytes),
    )


def crashed(rank: int, cause: Any, residual_bytes: int = 0) -> Crashed:
    return Crashed(
        cause=cause,
        rank=rank,
        phase="forward",
        detail="x",
        costs=make_costs(residual_bytes=residual_bytes),
    )


def diverged(residual_bytes: int = 0) -> Diverged:
    return Diverged(step=3, loss="nan", costs=make_costs(residual_bytes=residual_bytes))


def measured(
    rank: int, peak_bytes: int, throttled: tuple[str, ...] = (), residual_bytes: int = 0
) -> Measured:
    made = make_measured(
        1.0 + rank,
        conditions=make_conditions(throttled),
        costs=make_costs(residual_bytes=residual_bytes),
    )
    memory = replace(made.memory, rank=rank, limit_bytes=100, peak_bytes=peak_bytes)
    return replace(made, memory=memory)


BROKEN = crashed(1, "collective")
PRECEDENCE: tuple[Outcome, ...] = (
    out_of_memory(0, 200),
    diverged(),
    crashed(0, "exception"),
    BROKEN,
    Cancelled(cause=Stopped(by="Ctrl-C")),
    measured(0, 50),
)


@pytest.mark.parametrize(
    ("cause", "consequence"),
    list(itertools.combinations(PRECEDENCE, 2)),
    ids=lambda ending: f"{ending.kind} {getattr(ending, 'cause', '')}".strip(),
)
def test_the_cause_is_the_outcome_in_either_order(cause: Outcome, consequence: Outcome) -> None:
    assert merge_outcomes([cause, consequence]) == cause
    assert merge_outcomes([consequence, cause]) == cause


@pytest.mark.parametrize("cause", ["exception", "device_error"])
def test_a_crash_of_ones_own_goes_before_a_broken_collective(cause: str) -> None:
    assert merge_outcomes([BROKEN, crashed(2, cause)]) == crashed(2, cause)


def test_the_rank_that_wanted_most_speaks_for_all() -> None:
    endings = [out_of_memory(0, 150), out_of_memory(1, 300), out_of_memory(2, None)]

    assert merge_outcomes(endings) == endings[1]


def test_an_unknown_amount_still_is_out_of_memory() -> None:
    assert merge_outcomes([BROKEN, out_of_memory(1, None)]) == out_of_memory(1, None)


def test_times_come_from_the_first_rank_and_memory_from_the_fullest() -> None:
    first, second = measured(0, 40, ("thermal",)), measured(1, 90, ("power cap", "thermal"))

    agreed = merge_outcomes([first, second])

    assert isinstance(agreed, Measured)
    assert agreed.step_seconds == first.step_seconds
    assert agreed.memory == second.memory
    assert agreed.conditions.throttled == ("power cap", "thermal")


def test_a_rank_alone_agrees_with_itself() -> None:
    for ending in PRECEDENCE:
        assert merge_outcomes([ending]) == ending


@pytest.mark.parametrize(
    "endings",
    [
        [measured(0, 1, residual_bytes=1), measured(1, 1, residual_bytes=7)],
        [out_of_memory(0, 200, residual_bytes=1), crashed(1, "collective", residual_bytes=7)],
    ],
    ids=["measured", "out of memory"],
)
def test_what_was_left_behind_is_the_largest_of_all_ranks(endings: list[Outcome]) -> None:
    agreed = merge_outcomes(endings)

    assert isinstance(agreed, Measured | OutOfMemory)
    assert agreed.costs is not None
    assert agreed.costs.residual_bytes == 7


ENDINGS = st.one_of(
    st.builds(out_of_memory, st.just(0), st.none() | st.integers(101, 999), st.integers(0, 9)),
    st.builds(diverged, st.integers(0, 9)),
    st.builds(
        crashed,
        st.just(0),
        st.sampled_from(["exception", "collective", "device_error"]),
        st.integers(0, 9),
    ),
    st.builds(measured, st.just(0), st.integers(1, 100)),
)


@given(st.lists(ENDINGS, min_size=1, max_size=8), st.randoms())
def test_the_order_of_ranks_does_not_change_the_kind(endings: list[Outcome], draw: Any) -> None:
    shuffled = draw.sample(endings, len(endings))

    one, other = merge_outcomes(endings), merge_outcomes(shuffled)

    assert one.kind == other.kind
    if isinstance(one, OutOfMemory) and isinstance(other, OutOfMemory):
        assert one.wanted_bytes == other.wanted_bytes
    if isinstance(one, Crashed) and isinstance(other, Crashed):
        assert (one.cause == "collective") == (other.cause == "collective")
    assert replace(one) in endings or isinstance(one, Measured | OutOfMemory)


@given(st.lists(ENDINGS, min_size=1, max_size=8))
def test_only_a_trial_that_every_rank_measured_is_measured(endings: list[Outcome]) -> None:
    everybody = all(isinstance(ending, Measured) for ending in endings)

    assert isinstance(merge_outcomes(endings), Measured) == everybody
