"""Signals that stop a sweep: the first raises, the second prints a hint, the third raises again."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

from orchestrator.host import termination_as_interrupt


def interrupt(signum: signal.Signals) -> None:
    os.kill(os.getpid(), signum)


@pytest.mark.parametrize(
    ("signum", "words"), [(signal.SIGINT, "Ctrl-C"), (signal.SIGTERM, "SIGTERM")]
)
def test_a_signal_interrupts_and_says_which_it_was(signum: signal.Signals, words: str) -> None:
    before = signal.getsignal(signum)

    with termination_as_interrupt() as came, pytest.raises(KeyboardInterrupt):
        interrupt(signum)

    assert (came.signum, str(came)) == (signum, words)
    assert signal.getsignal(signum) is before


def test_the_second_signal_cuts_nothing_short_and_the_third_ends_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with termination_as_interrupt() as came:
        with pytest.raises(KeyboardInterrupt):
            interrupt(signal.SIGTERM)
        interrupt(signal.SIGINT)
        assert "Measurements are kept" in capsys.readouterr().err
        assert came.signum == signal.SIGTERM  # that is what ended it
        with pytest.raises(KeyboardInterrupt):
            interrupt(signal.SIGINT)


def test_what_a_shell_starts_behind_itself_is_left_alone_by_ctrl_c() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with termination_as_interrupt():
            interrupt(signal.SIGINT)
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads_have_no_signals() -> None:
    def run() -> int:
        with termination_as_interrupt() as came:
            return came.times

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(run).result() == 0
