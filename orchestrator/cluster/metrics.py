"""A sweep's metrics as Ray exports them: each node's agent serves them to Prometheus.

Ray puts `ray_` before every name, and `_total` behind a counter's. This is the one module that
knows Ray's metrics.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, final

from orchestrator.core.events import Event, SweepStarted
from orchestrator.core.state import SweepState
from orchestrator.tracking.callback import AbstractCallback
from orchestrator.tracking.metrics import (
    LABELS,
    METRICS,
    Metric,
    Reading,
    Utilization,
    current,
    happened,
    standing,
    utilization,
)

# An agent forgets a gauge that was not set for two of its reporting intervals, of 10 s each or
# what RAY_metrics_report_interval_ms says, and at least 1 s
_REFRESH_SECONDS = 1.0


@final
class RayMetrics(AbstractCallback):
    """Keeps the metrics of the driver's process up with the sweep.

    To set a value writes it down in this process; Ray reports it to the node's agent from threads
    of its own, and drops it where there is none. Gauges are set again every second, in a thread,
    because the agent forgets those that are not.

    Args:
        clock: Seconds since the epoch.
        refresh_seconds: How often gauges are set.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.time,
        refresh_seconds: float = _REFRESH_SECONDS,
    ) -> None:
        self._clock = clock
        self._refresh_seconds = refresh_seconds
        self._seen: tuple[Utilization, SweepState] | None = None
        self._metrics: dict[str, Any] = {}
        self._standing: tuple[Reading, ...] = ()
        self._stood: tuple[object, object] | None = None  # records and validations that they are of
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._refresh, name="plimsoll-metrics", daemon=True)

    def on_event(self, event: Event, state: SweepState) -> None:
        """Counts what happened; gauges follow within a second."""
        if self._seen is None:
            self._metrics = {metric.name: _made(metric, state) for metric in METRICS}
        meter, before = self._seen or (Utilization(), state)
        self._seen = utilization(meter, event, before), state
        self._tell(happened(event))
        if isinstance(event, SweepStarted) and not self._thread.is_alive():
            self._thread.start()

    def close(self) -> None:
        """Sets the gauges for the last time."""
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join()

    def _refresh(self) -> None:
        last = False
        while not last:
            last = self._closed.wait(self._refresh_seconds)
            assert self._seen is not None
            meter, state = self._seen
            # the same tuples as before hold the same records
            if self._stood is None or not _same(self._stood, state):
                self._stood = (state.records, state.validations)
                self._standing = tuple(standing(state))
            self._tell(self._standing)
            self._tell(current(meter, state, self._clock()))

    def _tell(self, readings: Iterable[Reading]) -> None:
        for reading in readings:
            made, labels = self._metrics[reading.metric.name], dict(reading.labels)
            match reading.metric.kind:
                case "counter":
                    made.inc(reading.value, labels)
                case "gauge":
                    made.set(reading.value, labels)
                case "histogram":
                    made.observe(reading.value, labels)


def _same(stood: tuple[object, object], state: SweepState) -> bool:
    records, validations = stood
    return records is state.records and validations is state.validations


def _made(metric: Metric, state: SweepState) -> Any:
    from ray.util.metrics import Counter, Gauge, Histogram

    labels = (*LABELS, *metric.labels)
    if metric.kind == "histogram":
        made = Histogram(metric.name, metric.help, list(metric.buckets), labels)
    else:
        made = {"counter": Counter, "gauge": Gauge}[metric.kind](metric.name, metric.help, labels)
    experiment = state.spec.tracking.experiment or state.study
    return made.set_default_tags({"study": state.study, "experiment": experiment})
