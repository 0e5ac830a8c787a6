"""Metrics of a sweep, exported through Ray: each node's agent serves them to Prometheus.

Ray prefixes every name with `ray_` and appends `_total` to the names of counters. No other module
uses Ray's metrics.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any, final

from orchestrator.core.events import Event, SweepStarted
from orchestrator.core.state import AbstractCallback, SweepState
from orchestrator.tracking.metrics import (
    LABELS,
    METRICS,
    Metric,
    Reading,
    event_readings,
    live_readings,
    study_readings,
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
        self._instruments: dict[str, Any] = {}
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._refresh, name="plimsoll-metrics", daemon=True)

    def on_event(self, event: Event, state: SweepState) -> None:
        """Updates counters and histograms; gauges follow within a second."""
        if self._latest is None:
            self._instruments = {metric.name: _instrument(metric, state) for metric in METRICS}
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
            self._write(study_readings(state))
            self._write(live_readings(self._groups, state))

    def _write(self, readings: Iterable[Reading]) -> None:
        for reading in readings:
            instrument = self._instruments[reading.metric.name]
            labels = dict(reading.labels)
            match reading.metric.kind:
                case "counter":
                    instrument.inc(reading.value, labels)
                case "gauge":
                    instrument.set(reading.value, labels)
                case "histogram":
                    instrument.observe(reading.value, labels)


def _instrument(metric: Metric, state: SweepState) -> Any:
    from ray.util.metrics import Counter, Gauge, Histogram

    labels = (*LABELS, *metric.labels)
    if metric.kind == "histogram":
        instrument = Histogram(metric.name, metric.help, list(metric.buckets), labels)
    else:
        kind = {"counter": Counter, "gauge": Gauge}[metric.kind]
        instrument = kind(metric.name, metric.help, labels)
    experiment = state.spec.tracking.experiment or state.study
    return instrument.set_default_tags({"study": state.study, "experiment": experiment})
