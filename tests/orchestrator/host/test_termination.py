"""Signals that stop a sweep: the first raises, the second ends the process."""

import contextlib
import os
import signal
import subprocess
import sys
import time

import psutil
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


def test_a_signal_is_delivered_to_a_loop_that_waits_for_it() -> None:
    delivered: list[str] = []
    with termination_as_interrupt() as came:
        came.deliver = lambda: delivered.append(str(came))
        interrupt(signal.SIGTERM)

    assert delivered == ["SIGTERM"]


def test_a_signal_that_interrupts_nothing_has_come_all_the_same() -> None:
    """Ray's handler takes it while Ray starts; Python drops what it raises in a finalizer."""
    with termination_as_interrupt() as came:
        signal.signal(signal.SIGTERM, lambda *_: None)
        interrupt(signal.SIGTERM)
        until = time.monotonic() + 600
        while not came.came and time.monotonic() < until:
            time.sleep(0.01)

        assert (came.came, str(came)) == (True, "SIGTERM")


# Waits in C without Python's interpreter, as in a call of Ray, with a child of its own
STUCK = """
import contextlib, ctypes, subprocess
from orchestrator.host import termination_as_interrupt

with termination_as_interrupt():
    # says its id when the main thread no longer is in Python
    subprocess.Popen(["sh", "-c", "sleep 2; echo $$; exec sleep 600 >/dev/null"])
    libc, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(128)
    while True:
        with contextlib.suppress(KeyboardInterrupt):
            libc.pthread_mutex_lock(mutex)  # the second time it waits for itself
"""


def test_a_handler_that_a_library_has_replaced_is_put_back() -> None:
    with termination_as_interrupt() as came:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        came.handle()
        with pytest.raises(KeyboardInterrupt):
            interrupt(signal.SIGTERM)


@pytest.mark.cases_by_default(1)
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_the_second_signal_ends_a_process_that_never_comes_back(signum: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", STUCK], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        child = int(process.stdout.readline())
        process.send_signal(signum)
        assert "Interrupt again" in process.stderr.readline()
        assert process.poll() is None
        process.send_signal(signum)

        assert process.wait(600) == 128 + signum
        assert process.stdout.read() == ""
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(child).wait(600)


def test_what_a_shell_starts_behind_itself_is_left_alone_by_ctrl_c() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with termination_as_interrupt():
            interrupt(signal.SIGINT)
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
