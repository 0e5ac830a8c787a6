"""Real ranks for tests: warm processes over gloo that run jobs.

A start takes seconds, mostly imports, while a trial takes some tenths of a second. So a group
serves many tests. Every wait has a timeout. A group that lost a rank is not used again.
"""

import contextlib
import ctypes
import faulthandler
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal

import pytest
import torch.distributed as dist

from search_spaces.specification.schema import SweepSpec
from search_spaces.trial import Measured, Outcome, TrialRequest
from tests.rigs import stubborn
from tests.workers.values import CALL_SECONDS, a_short_request, a_spec
from workers.entry import run_trial, warm_up
from workers.worker import Worker

START_SECONDS = 600.0
_HOST = "127.0.0.1"
_M_MMAP_THRESHOLD = -3  # of mallopt, in malloc.h
_PRELOAD = "tests.workers.preload"  # in the process that ranks are forked from
_ROOT = str(Path(__file__).parents[2])

Job = Callable[..., Any]


@contextlib.contextmanager
def rank_processes(start: Literal["forkserver", "spawn"]) -> Iterator[Any]:
    """Yields the context of multiprocessing in which ranks start.

    A forkserver has imported what ranks need.
    """
    context = multiprocessing.get_context(start)
    if start == "forkserver":
        context.set_forkserver_preload([_PRELOAD])
    path = os.pathsep.join(filter(None, [_ROOT, os.environ.get("PYTHONPATH")]))
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("OMP_NUM_THREADS", "1")
        # a thread that was refused memory moves to another arena, whose top malloc_trim keeps: up
        # to 64 MiB, which the next trial of a shared rank would use without growing
        environment.setenv("MALLOC_ARENA_MAX", "1")
        environment.setenv("PYTHONPATH", path)  # of the process that loads what ranks need
        yield context


class Group:
    """A worker group on this machine, one process per rank."""

    def __init__(self, size: int, spec: SweepSpec, backend: str = "gloo") -> None:
        """Starts the ranks and warms them up with `spec`, whose memory limit they keep."""
        self._store = dist.TCPStore(_HOST, 0, is_master=True, wait_for_workers=False)
        # CUDA does not survive a fork of a process that has asked for it, as DeepSpeed does
        forked = spec.cluster.device == "cpu"
        self._ends: list[Connection] = []
        self._processes = []
        with rank_processes("forkserver" if forked else "spawn") as context:
            for rank in range(size):
                ours, theirs = context.Pipe()
                place = (rank, size, self._store.port, backend)
                process = context.Process(target=_serve, args=(theirs, place, spec), daemon=True)
                process.start()
                theirs.close()
                self._ends.append(ours)
                self._processes.append(process)
        self._answers(START_SECONDS)

    @property
    def alive(self) -> bool:
        """True while every rank runs."""
        return all(process.is_alive() for process in self._processes)

    def call(self, job: Job, *arguments: Any, seconds: float = CALL_SECONDS) -> list[Any]:
        """Returns `job(worker, *arguments)` of each rank, in the order of ranks."""
        for end in self._ends:
            end.send((job, arguments))
        return self._answers(seconds)

    def run_on_all(self, request: TrialRequest) -> list[Outcome]:
        """Runs a trial and returns the outcome of each rank."""
        return self.call(_run, request)

    def run(self, request: TrialRequest) -> Outcome:
        """Runs a trial and returns its outcome, on which the ranks must agree."""
        first, *others = self.run_on_all(request)
        assert all(other == first for other in others), "the ranks do not agree"
        return first

    def assert_trains(self, **knobs: Any) -> None:
        """Checks that a plan trains for a few steps, for use after a failed trial."""
        outcome = self.run(a_short_request(**knobs))
        assert isinstance(outcome, Measured), outcome

    def return_freed(self) -> None:
        """Has ranks return large blocks once they are freed, as allocator mmap does."""
        self.call(_return_freed)

    def stop(self) -> None:
        """Asks the ranks to exit, and kills those that do not."""
        for end in self._ends:
            if not end.closed:
                with contextlib.suppress(BrokenPipeError):
                    end.send(None)
        for process in self._processes:
            process.join(10)
        self._kill()

    def _answers(self, seconds: float) -> list[Any]:
        until = time.monotonic() + seconds
        answers = []
        for rank, end in enumerate(self._ends):
            try:
                if not end.poll(max(until - time.monotonic(), 0)):
                    raise TimeoutError(f"rank {rank} did not answer in {seconds} s")
                answers.append(end.recv())
            except (EOFError, ConnectionResetError, TimeoutError) as error:
                self._kill()
                raise AssertionError(f"rank {rank} is gone: {error!r}") from error
        return answers

    def _kill(self) -> None:
        for process in self._processes:
            process.kill()
            process.join(10)
        for end in self._ends:
            end.close()


class Groups:
    """One group of each size and backend, replaced after a test broke it."""

    def __init__(self, spec: SweepSpec | None = None) -> None:
        """Starts no ranks yet; `spec` sets their memory limit, by default that of `a_spec`."""
        self._spec = spec or a_spec()
        self._groups: dict[tuple[int, str], Group] = {}

    def of(self, size: int, backend: str = "gloo") -> Group:
        """Returns the group with `size` ranks, started if there is none."""
        group = self._groups.get((size, backend))
        if group is None or not group.alive:
            group = self._groups[size, backend] = Group(size, self._spec, backend)
        return group

    def stop(self) -> None:
        """Stops all groups."""
        for group in self._groups.values():
            group.stop()


def _return_freed(_: Worker) -> None:
    ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, 2**20)


def _run(worker: Worker, request: TrialRequest) -> Outcome:
    return run_trial(request, worker)


def _serve(end: Connection, place: tuple[int, int, int, str], spec: SweepSpec) -> None:
    """Runs jobs on a rank until it is asked to exit; an exception ends the rank."""
    rank, size, port, backend = place
    faulthandler.enable()  # a crash in a library says where
    if spec.cluster.device == "cpu":
        assert _PRELOAD in sys.modules, "the process that it was forked from could not import it"
    if size > 1:
        store = dist.TCPStore(_HOST, port, is_master=False)
        stubborn.register()
        dist.init_process_group(backend, store=store, rank=rank, world_size=size)
    # no daemon any more, which may have no children: loader processes are some
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]
    worker = Worker.start(spec)
    warm_up(spec, worker)
    end.send("ready")
    while (asked := end.recv()) is not None:
        job, arguments = asked
        end.send(job(worker, *arguments))
    if size > 1:
        dist.destroy_process_group()


def peaks_of(*requests: TrialRequest) -> list[int]:
    """Returns a rank's resident bytes at the peak of each trial of two ranks, and prints them."""
    group, peaks = Group(2, requests[0].spec), list[int]()
    group.return_freed()
    for request in requests:
        outcome = group.run(request)
        assert isinstance(outcome, Measured), outcome
        peaks.append(outcome.memory.peak_bytes)
        print(f"{peaks[-1] / 1e6:.0f} MB, {outcome.step_seconds.value:.2f} s a step")
    group.stop()
    return peaks
