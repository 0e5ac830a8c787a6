"""Tells MLflow what happens in a sweep, from a thread of its own."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, final

from orchestrator.core.events import (
    Event,
    GroupStarted,
    SweepEnded,
    SweepStarted,
    TrialStarted,
)
from orchestrator.core.state import SweepState
from orchestrator.study.retry import RetryPolicy, Unavailable
from orchestrator.tracking.callback import AbstractCallback
from orchestrator.tracking.mlflow_reachability import settle_mlflow
from orchestrator.tracking.mlflow_store import store_uri
from search_spaces.errors import StudyError, require
from search_spaces.facts import ModelFacts, Provenance
from search_spaces.spec.redaction import without_password

if TYPE_CHECKING:
    from orchestrator.tracking.mlflow_writer import StudyWriter

CLOSE_SECONDS = 60.0
LAST_SECONDS = 10.0

_Item = tuple[Event | None, SweepState]
# A trial that ended is written when the next one runs: between two trials the driver is needed to
# ask and to hand out, and writing takes as long as that.
HEAD_START_SECONDS = 0.2


def say_on_stderr(text: str) -> None:
    """Writes a line for the person who runs the sweep."""
    sys.stderr.write(f"{text}\n")


@final
class MlflowCallback(AbstractCallback):
    """Keeps MLflow up with the study; a store that breaks costs the sweep nothing.

    Whatever could not be written is tried again at each later event and when closing, and
    once more when the study is taken up again.

    Args:
        model: What is trained, for the exports; None where nobody knows.
        provenances: User, code and data of the study's drivers, for the tags and the data sets.
        say: Where a broken store is told of, once, when closing.
        close_seconds: How long closing waits for what is left to be written.
        last_seconds: How long of that a store is tried again that does not answer.
        head_start_seconds: How long the next trial has run when one that ended is written.
    """

    def __init__(
        self,
        model: ModelFacts | None = None,
        say: Callable[[str], None] = say_on_stderr,
        close_seconds: float = CLOSE_SECONDS,
        last_seconds: float = LAST_SECONDS,
        head_start_seconds: float = HEAD_START_SECONDS,
        provenances: Sequence[Provenance] = (),
    ) -> None:
        self._head_start_seconds = head_start_seconds
        self._model = model
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
        """Why MLflow is not up with the study, None while it is."""
        return self._problem

    def on_event(self, event: Event, state: SweepState) -> None:
        """Queues what MLflow should hear of."""
        self._last = state
        if isinstance(event, SweepStarted | GroupStarted | TrialStarted | SweepEnded):
            self._items.put((event, state))
        if not self._thread.is_alive() and isinstance(event, SweepStarted):
            self._thread.start()

    def close(self) -> None:
        """Waits, within bounds, until all is written; says so if it is not."""
        if self._last is None or not self._thread.is_alive():
            return
        self._items.put((None, self._last))
        self._items.put(None)
        self._thread.join(self._close_seconds)
        if self._thread.is_alive():
            self._problem = self._problem or f"not done after {self._close_seconds:.0f} s"
        if self._problem:
            self._say(
                f"MLflow does not hold the whole sweep ({self._problem}); the study does."
                " `plimsoll sync` adds what is missing."
            )

    def _work(self) -> None:
        settle_mlflow()
        while (item := self._next()) is not None:
            if isinstance(item[0], TrialStarted):
                time.sleep(self._head_start_seconds)
            patience = RetryPolicy("MLflow", self._last_seconds if item[0] is None else 0.0)
            with contextlib.suppress(Unavailable):
                patience.call(partial(self._try, item))

    def _next(self) -> _Item | None:
        """What is to be written; while the store is broken, only the newest of what waits."""
        item = self._items.get()
        while self._problem and item is not None and item[0] is not None:
            if self._items.empty():
                break
            item = self._items.get()
        return item

    def _try(self, item: _Item, _: int) -> None:
        # here, since importing mlflow takes seconds
        from orchestrator.tracking.mlflow_client import in_short, tracking_errors

        try:
            self._handle(*item)
        except tracking_errors() as error:
            self._writer = None  # what came through, though its answer was lost, is looked up
            self._problem = in_short(error, store_uri(item[1].spec))
            raise Unavailable(self._problem) from error
        self._problem = None  # each call brings MLflow up with the whole state

    def _handle(self, event: Event | None, state: SweepState) -> None:
        from orchestrator.tracking.mlflow_writer import StudyWriter

        if self._writer is None:
            self._writer = StudyWriter(state, self._model, self._provenances)
        self._writer.describe_workers(state)
        self._writer.add_missing(state)
        if event is None:
            self._writer.finish(state)


def add_what_is_missing(
    state: SweepState, model: ModelFacts | None, provenances: Sequence[Provenance] = ()
) -> int:
    """Writes all trials and validations that MLflow does not hold, and the answer.

    Returns:
        How many there were.

    Raises:
        StudyError: If the store cannot be written.
        MissingExtraError: If MLflow is not installed.
    """
    require("mlflow")
    settle_mlflow()
    # here, since importing mlflow takes seconds
    from orchestrator.tracking.mlflow_client import in_short, tracking_errors
    from orchestrator.tracking.mlflow_writer import StudyWriter

    uri = store_uri(state.spec)
    try:
        writer = StudyWriter(state, model, provenances)
        missing = writer.missing(state)
        writer.describe_workers(state)
        writer.finish(state)
    except tracking_errors() as error:
        told = in_short(error, uri)
        raise StudyError(f"MLflow at {without_password(uri)} cannot be written: {told}") from error
    return missing
