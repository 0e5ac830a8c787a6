"""Metrics of a sweep, exported through Ray: each node's agent serves them to Prometheus.

Ray prefixes every name with `ray_` and appends `_total` to the names of counters. No other module
uses Ray's metrics.
"""

import threading
from collections.abc import Callable, Iterable
from typing import final

from orchestrator.core.events import Event, SweepStarted
from orchestrator.core.state import AbstractCallback, SweepState
from orchestrator.tracking.metrics import (
    LABELS,
    Metric,
    Reading,
    event_readings,
    gauge_readings,
    metrics,
)

# An agent forgets a gauge that is not set for two of its reporting intervals. An interval is 10 s
# or RAY_metrics_report_interval_ms, and at least 1 s.
_REFRESH_SECONDS = 1.0


@final
class RayMetrics(AbstractCallback):
    """Updates the metrics in the driver's process as the sweep proceeds.

    Ray's own threads report values to the node's agent, and drop them if there is none. A thread
    sets all gauges every second, because the agent forgets gauges that are not set.

    Args:
        refresh_seconds: Interval between two updates of the gauges.
    """

    def __init__(self, refresh_seconds: float = _REFRESH_SECONDS) -> None:
        self._refresh_seconds = refresh_seconds
        self._latest: SweepState | None = None
        self._groups = 1  # trials that can run at the same time
        self._writers: dict[str, Callable[[float, dict[str, str]], None]] = {}
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._refresh, name="plimsoll-metrics", daemon=True)

    def on_event(self, event: Event, state: SweepState) -> None:
        """Updates counters and histograms; gauges follow within a second."""
        if self._latest is None:
            self._writers = {metric.name: _writer(metric, state) for metric in metrics()}
        self._latest = state
        self._write(event_readings(event))
        if isinstance(event, SweepStarted):
            self._groups = event.groups
            if not self._thread.is_alive():
                self._thread.start()

    def close(self) -> None:
        """Sets the gauges for the last time."""
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join()

    def _refresh(self) -> None:
        is_last = False
        while not is_last:
            is_last = self._closed.wait(self._refresh_seconds)
            state = self._latest
            assert state is not None
            self._write(gauge_readings(self._groups, state))

    def _write(self, readings: Iterable[Reading]) -> None:
        for reading in readings:
            self._writers[reading.metric](reading.value, dict(reading.labels))


def _writer(metric: Metric, state: SweepState) -> Callable[[float, dict[str, str]], None]:
    """Returns the function of a new instrument that takes a value with its labels."""
    from ray.util.metrics import Counter, Gauge, Histogram

    labels = (*LABELS, *metric.labels)
    experiment = state.spec.tracking.experiment or state.study
    tags = {"study": state.study, "experiment": experiment}
    writer: Callable[[float, dict[str, str]], None]
    match metric.kind:
        case "counter":
            writer = Counter(metric.name, metric.help, labels).set_default_tags(tags).inc
        case "gauge":
            writer = Gauge(metric.name, metric.help, labels).set_default_tags(tags).set
        case "histogram":
            histogram = Histogram(metric.name, metric.help, list(metric.buckets), labels)
            writer = histogram.set_default_tags(tags).observe
    return writer
