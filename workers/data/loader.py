"""Batches prepared ahead: loader processes beside the rank, and page-locked memory."""

from __future__ import annotations

import contextlib
import gc
import itertools
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import NoReturn

import torch
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from search_spaces.plan import Plan
from workers.data.batches import WORST_STEP, BatchSource, StepBatches

Feed = Callable[[int], StepBatches]


@contextlib.contextmanager
def feeding(source: BatchSource, plan: Plan, rank: int, device: torch.device) -> Iterator[Feed]:
    """What gives the batches of a step: first of WORST_STEP, then of 0, 1, 2 and so on.

    Loader processes are forked, so that they have the data and the user's own function without
    a copy, in milliseconds. They are forked before a memory limit is in force and are not held
    to one: what they take is no part of the rank's memory, batches that they handed over are.
    A batch maker that counts its calls counts them in each process by itself. Tensors travel
    through /dev/shm. The processes are gone when the context is left, in whatever way: they
    hold the sockets of the rank's process groups open, which peers wait to see closed.

    Args:
        source: Makes the batches.
        plan: How many loader processes there are, and whether batches are page-locked.
        rank: The data rank that is fed.
        device: Where batches go; only for CUDA can they be page-locked.
    """
    pinned = plan.loader_pin_memory and device.type == "cuda"
    if plan.loader_workers == 0:
        yield _inline(source, plan, rank, pinned=pinned)
        return
    loader = DataLoader(
        _Steps(source, plan, rank),
        batch_size=None,  # an item is a whole step
        sampler=itertools.count(WORST_STEP),
        num_workers=plan.loader_workers,
        multiprocessing_context="fork",
        pin_memory=pinned,
        worker_init_fn=_start,
    )
    batches = iter(loader)
    try:
        yield _in_order(batches)
    finally:
        # at once and not when it is collected; torch has no public way
        batches._shutdown_workers()  # type: ignore[attr-defined]


def _inline(source: BatchSource, plan: Plan, rank: int, *, pinned: bool) -> Feed:
    def feed(step: int) -> StepBatches:
        given = source.step(plan, rank, step)
        return given.pin_memory() if pinned else given

    return feed


def _in_order(batches: Iterator[StepBatches | _Failure]) -> Feed:
    steps = itertools.count(WORST_STEP)

    def feed(step: int) -> StepBatches:
        assert step == next(steps), "loader processes prepare steps in order"
        given = next(batches)
        if isinstance(given, _Failure):
            given.raise_again()
        return given

    return feed


class _Steps(TorchDataset["StepBatches | _Failure"]):
    """The steps of one rank, by number."""

    def __init__(self, source: BatchSource, plan: Plan, rank: int) -> None:
        self._source, self._plan, self._rank = source, plan, rank

    def __getitem__(self, step: int) -> StepBatches | _Failure:
        with _Carried() as carried:
            return self._source.step(self._plan, self._rank, step)
        assert carried.failure is not None
        return carried.failure


@dataclass(frozen=True, slots=True, kw_only=True)
class _Failure:
    """What was raised in a loader process, in words: the error itself may not travel."""

    name: str
    text: str
    trace: str
    of_memory: bool

    def raise_again(self) -> NoReturn:
        """Raises it in the rank, under its own name, as if it had been raised there."""
        kin: type[Exception] = MemoryError if self.of_memory else RuntimeError
        raise type(self.name, (kin,), {})(self.text) from RuntimeError(self.trace)


class _Carried(contextlib.AbstractContextManager["_Carried"]):
    """Keeps what is raised inside, whatever it is: `workers.entry` judges it in the rank."""

    failure: _Failure | None = None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if not isinstance(error, Exception | SystemExit):
            return False
        self.failure = _Failure(
            name=type(error).__name__,
            text=str(error),
            trace="".join(traceback.format_exception(error)),
            of_memory=isinstance(error, MemoryError),
        )
        return True


def _start(_: int) -> None:
    """In a loader process: what is the rank's is never collected here.

    Its process groups among it, whose threads were not forked and cannot be joined.
    """
    gc.freeze()
