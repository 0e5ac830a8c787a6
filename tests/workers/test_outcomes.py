"""Outcomes of ranks, merged; causes of crashes; and no secret in either."""

import errno
import itertools
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from search_spaces.trial import (
    Cancelled,
    Crashed,
    CrashKind,
    Diverged,
    Measured,
    Outcome,
    OutOfMemory,
    Stopped,
)
from tests.outcomes import make_conditions, make_costs, make_measured
from workers.entry import _ending_of
from workers.outcomes import crash_cause, merge_outcomes


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


def test_the_rank_that_wanted_most_speaks_for_all() -> None:
    endings = [out_of_memory(0, 150), out_of_memory(1, 300), out_of_memory(2, None)]

    assert merge_outcomes(endings) == endings[1]


def test_times_come_from_the_first_rank_and_memory_from_the_fullest() -> None:
    first, second = measured(0, 40, ("thermal",)), measured(1, 90, ("power cap", "thermal"))

    agreed = merge_outcomes([first, second])

    assert isinstance(agreed, Measured)
    assert agreed.step_seconds == first.step_seconds
    assert agreed.memory == second.memory
    assert agreed.conditions.throttled == ("power cap", "thermal")


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


def raised(code: str, file: str) -> Exception:
    """Runs code from a file and returns the exception that it raises."""
    with pytest.raises(Exception) as found:  # noqa: PT011  any kind, that is the question
        exec(compile(code, file, "exec"), {"torch": torch, "dist": dist})
    return found.value


USERS = str(Path.home() / "project" / "model.py")
LIBRARYS = torch.nn.__file__
FULL = f"raise OSError({errno.ENOSPC}, 'No space left on device')"
# as torch does when a file that it writes into raises
WRAPPED = f"try:\n    {FULL}\nfinally:\n    raise RuntimeError('unexpected pos 64 vs 0')"
COLLECTIVE = "raise dist.DistBackendError('so')"
GLOO = (
    "raise RuntimeError('[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed')"
)


@pytest.mark.parametrize(
    ("code", "phase", "cause"),
    [
        (FULL, "forward", "disk_full"),
        (WRAPPED, "checkpoint", "disk_full"),
        (f"raise OSError({errno.EDQUOT}, 'Disk quota exceeded')", "build", "disk_full"),
        (f"raise OSError({errno.EACCES}, 'Permission denied')", "forward", "exception"),
        (COLLECTIVE, "backward", "collective"),
        (GLOO, "build", "collective"),
        ("raise RuntimeError('CUDA error: an illegal memory access')", "forward", "device_error"),
        ("raise ValueError('so')", "forward", "exception"),
    ],
)
@pytest.mark.parametrize("file", [USERS, LIBRARYS])
def test_causes_are_those_of_the_errors(code: str, phase: str, cause: CrashKind, file: str) -> None:
    assert crash_cause(raised(code, file), phase) == cause


@pytest.mark.parametrize(
    ("file", "phase", "cause"),
    [
        (LIBRARYS, "build", "layout"),
        (LIBRARYS, "forward", "exception"),
        (USERS, "build", "exception"),
    ],
)
def test_what_cannot_be_built_by_nobodys_own_code_is_the_layouts(
    file: str, phase: str, cause: CrashKind
) -> None:
    code = "from workers.outcomes import cause_of\ntorch.nn.Linear(2, 2)(torch.ones(3))"
    error = raised(code, file)
    error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next  # not this test's

    assert crash_cause(error, phase) == cause


VALUE = "0123456789abcdef-of-a-variable"
TEXT = f"no answer from https://ann:S3CRET@hub/x with {VALUE}"


def _ending(error: Exception) -> Any:
    """Raises an error in a rank without a model, and returns its outcome."""
    meter = SimpleNamespace(bytes_in_use=lambda: 1, nearly_full=lambda: False, limit_bytes=2**30)
    worker: Any = SimpleNamespace(
        meter=meter, device=torch.device("cpu"), ranks=SimpleNamespace(rank=0)
    )
    try:
        raise error
    except Exception as raised:  # noqa: BLE001 - as the worker does
        return _ending_of(raised, "build", worker)


@pytest.mark.parametrize("kind", [ValueError, MemoryError])
def test_s5_neither_the_detail_nor_the_trace_has_secrets(
    kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEAM_API_KEY", VALUE)

    outcome = _ending(kind(TEXT))

    assert isinstance(outcome, Crashed | OutOfMemory)
    texts = (outcome.detail, getattr(outcome, "trace", ""))
    assert "https://ann:***@hub/x with ***" in outcome.detail
    assert all(secret not in text for text in texts for secret in ("S3CRET", VALUE))
