"""Batches prepared in advance: loader processes of a rank, and page-locked memory."""

from __future__ import annotations

import contextlib
import gc
import itertools
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import NoReturn

import torch
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from search_spaces.plan import Plan
from workers.data.batches import WORST_STEP, BatchSource, StepBatches

Feed = Callable[[int], StepBatches]


@contextlib.contextmanager
def batch_feed(source: BatchSource, plan: Plan, rank: int, device: torch.device) -> Iterator[Feed]:
    """Provides a function that gives the batches of a step: WORST_STEP first, then 0, 1, 2...

    Loader processes are forked, so that they have the data and the user's own function within
    milliseconds and without a copy. The fork happens before a memory limit is in force, and the
    limit does not apply to them: their memory does not count as the rank's, but batches that
    they handed over do. A batch maker that counts its calls counts them in each process
    separately. Tensors travel through /dev/shm. The processes end with the context in any
    case: they hold the sockets of the rank's process groups open, and peers wait until those
    close.

    Args:
        source: Makes the batches.
        plan: Sets the number of loader processes, and if batches are page-locked.
        rank: The data rank that gets the batches.
        device: Destination of the batches; only those for CUDA can be page-locked.
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
        worker_init_fn=_init_process,
    )
    batches = iter(loader)
    try:
        yield _in_order(batches)
    finally:
        # ends the processes now, not at garbage collection; torch has no public function for it
        batches._shutdown_workers()  # type: ignore[attr-defined]


def _inline(source: BatchSource, plan: Plan, rank: int, *, pinned: bool) -> Feed:
    def feed(step: int) -> StepBatches:
        step_batches = source.step(plan, rank, step)
        return step_batches.pin_memory() if pinned else step_batches

    return feed


def _in_order(batches: Iterator[StepBatches | _Failure]) -> Feed:
    steps = itertools.count(WORST_STEP)

    def feed(step: int) -> StepBatches:
        assert step == next(steps), "loader processes prepare steps in order"
        item = next(batches)
        if isinstance(item, _Failure):
            item.raise_again()
        return item

    return feed


class _Steps(TorchDataset["StepBatches | _Failure"]):
    """The steps of one rank, by number."""

    def __init__(self, source: BatchSource, plan: Plan, rank: int) -> None:
        self._source, self._plan, self._rank = source, plan, rank

    def __getitem__(self, step: int) -> StepBatches | _Failure:
        failures: list[_Failure] = []
        with contextlib.ExitStack[bool]() as stack:
            stack.push(partial(_capture, failures))
            return self._source.step(self._plan, self._rank, step)
        return failures[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Failure:
    """An error of a loader process, as text: the error itself may not be picklable."""

    name: str
    text: str
    trace: str
    of_memory: bool

    def raise_again(self) -> NoReturn:
        """Raises the error in the rank under its own name."""
        base: type[Exception] = MemoryError if self.of_memory else RuntimeError
        raise type(self.name, (base,), {})(self.text) from RuntimeError(self.trace)


def _capture(failures: list[_Failure], _: object, error: object, __: object) -> bool:
    """Captures any error; `workers.entry` classifies it in the rank."""
    if not isinstance(error, Exception | SystemExit):
        return False
    failure = _Failure(
        name=type(error).__name__,
        text=str(error),
        trace="".join(traceback.format_exception(error)),
        of_memory=isinstance(error, MemoryError),
    )
    failures.append(failure)
    return True


def _init_process(_: int) -> None:
    # never collects the rank's objects in the loader process: among them are process groups,
    # whose threads were not forked and cannot be joined
    gc.freeze()
