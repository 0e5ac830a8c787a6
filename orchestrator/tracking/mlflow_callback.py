"""Callback that writes a sweep to MLflow in a thread of its own."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, final

from orchestrator.core.events import Event, GroupStarted, SweepEnded, SweepStarted, TrialEnded
from orchestrator.core.state import AbstractCallback, SweepState
from orchestrator.study.retry import RetryPolicy, Unavailable
from orchestrator.tracking.mlflow_reachability import configure_mlflow
from orchestrator.tracking.mlflow_store import store_uri
from search_spaces.errors import StudyError, require
from search_spaces.facts import Provenance
from search_spaces.safety.redaction import without_password

if TYPE_CHECKING:
    from orchestrator.tracking.mlflow_writer import StudyWriter

CLOSE_SECONDS = 60.0
LAST_SECONDS = 10.0

_Item = tuple[Event | None, SweepState]
# An ended trial is written once the next one runs: the driver is busy proposing and starting it,
# and writing takes as long as that.
HEAD_START_SECONDS = 0.2


def print_to_stderr(text: str) -> None:
    """Prints a line to stderr."""
    sys.stderr.write(f"{text}\n")


@final
class MlflowCallback(AbstractCallback):
    """Writes the study to MLflow; a failing store never disturbs the sweep.

    Failed writes are retried at each later event, when closing, and when the study resumes.

    Args:
        provenances: User, code and data of the study's drivers, for tags and datasets.
        say: Receives a message about a failing store, once, when closing.
        close_seconds: Time that closing waits for pending writes.
        last_seconds: Part of that time in which a store that does not answer is retried.
        head_start_seconds: Time after the end of a trial before it is written.
    """

    def __init__(
        self,
        say: Callable[[str], None] = print_to_stderr,
        close_seconds: float = CLOSE_SECONDS,
        last_seconds: float = LAST_SECONDS,
        head_start_seconds: float = HEAD_START_SECONDS,
        provenances: Sequence[Provenance] = (),
    ) -> None:
        self._head_start_seconds = head_start_seconds
        self._provenances = tuple(provenances)
        self._say = say
        self._close_seconds = close_seconds
        self._last_seconds = min(close_seconds / 2, last_seconds)
        self._items: SimpleQueue[_Item | None] = SimpleQueue()
        self._last: SweepState | None = None
        self._writer: StudyWriter | None = None
        self._problem: str | None = None
        self._thread = threading.Thread(target=self._work, name="plimsoll-mlflow", daemon=True)

    @property
    def problem(self) -> str | None:
        """The reason why MLflow lacks a part of the study; None if it lacks nothing."""
        return self._problem

    def on_event(self, event: Event, state: SweepState) -> None:
        """Queues an event if MLflow needs it."""
        if isinstance(event, SweepStarted | TrialEnded | SweepEnded):
            self._last = state  # of a group that started, a result may not be stored yet
        if isinstance(event, SweepStarted | GroupStarted | TrialEnded | SweepEnded):
            self._items.put((event, state))
        if not self._thread.is_alive() and isinstance(event, SweepStarted):
            self._thread.start()

    def close(self) -> None:
        """Waits, within bounds, until everything is written; reports it if something is not."""
        if self._last is None or not self._thread.is_alive():
            return
        self._items.put((None, self._last))
        self._items.put(None)
        self._thread.join(self._close_seconds)
        if self._thread.is_alive():
            self._problem = self._problem or f"not finished after {self._close_seconds:.0f} s"
        if self._problem:
            self._say(
                f"MLflow lacks a part of the sweep ({self._problem}). The study is complete:"
                " `plimsoll sync` adds the missing trials to MLflow."
            )

    def _work(self) -> None:
        configure_mlflow()
        while (item := self._next()) is not None:
            if isinstance(item[0], TrialEnded):
                time.sleep(self._head_start_seconds)
            retry = RetryPolicy("MLflow", self._last_seconds if item[0] is None else 0.0)
            with contextlib.suppress(Unavailable):
                retry.call(partial(self._try, item))

    def _next(self) -> _Item | None:
        """Returns the next item; while the store fails, skips to the newest event."""
        item = self._items.get()
        while self._problem and item is not None and item[0] is not None:
            if self._items.empty():
                break
            item = self._items.get()
        return item

    def _try(self, item: _Item, _: int) -> None:
        # imported here, because importing mlflow takes seconds
        from orchestrator.tracking.mlflow_client import short_message, tracking_errors

        try:
            self._handle(*item)
        except tracking_errors() as error:
            self._writer = None  # a new writer looks up what arrived although its reply was lost
            self._problem = short_message(error, store_uri(item[1].spec))
            raise Unavailable(self._problem) from error
        self._problem = None  # each call writes everything that is missing

    def _handle(self, event: Event | None, state: SweepState) -> None:
        from orchestrator.tracking.mlflow_writer import StudyWriter

        if self._writer is None:
            self._writer = StudyWriter(state, self._provenances)
        self._writer.describe_workers(state)
        if not isinstance(event, GroupStarted):
            self._writer.add_missing(state)
        if event is None:
            self._writer.finish(state)


def add_missing_runs(state: SweepState, provenances: Sequence[Provenance] = ()) -> int:
    """Writes all trials and validations that MLflow lacks, and the sweep's result.

    Returns:
        The number of trials and validations added.

    Raises:
        StudyError: If the store cannot be written.
        MissingExtraError: If MLflow is not installed.
    """
    require("mlflow")
    configure_mlflow()
    # imported here, because importing mlflow takes seconds
    from orchestrator.tracking.mlflow_client import short_message, tracking_errors
    from orchestrator.tracking.mlflow_writer import StudyWriter

    uri = store_uri(state.spec)
    try:
        writer = StudyWriter(state, provenances)
        missing = writer.missing(state)
        writer.describe_workers(state)
        writer.finish(state)
    except tracking_errors() as error:
        reason = short_message(error, uri)
        raise StudyError(
            f"MLflow at {without_password(uri)} cannot be written: {reason}"
        ) from error
    return missing
