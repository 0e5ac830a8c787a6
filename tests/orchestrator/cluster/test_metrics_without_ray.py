"""`RayMetrics` without a Ray to report to."""

import subprocess
import sys
import threading
import time

from orchestrator.cluster.metrics import RayMetrics
from tests.orchestrator.records import make_records, make_space, make_spec, sweep
from tests.outcomes import every_outcome

THREAD = "plimsoll-metrics"


def test_without_an_agent_nothing_happens_and_nothing_is_left_running() -> None:
    metrics, spec = RayMetrics(refresh_seconds=0.01), make_spec()
    records = make_records(make_space(spec), every_outcome())
    for event, state in sweep(spec, make_space(spec), records):
        metrics.on_event(event, state)
    time.sleep(0.05)
    assert any(thread.name == THREAD for thread in threading.enumerate())

    metrics.close()

    assert not any(thread.name == THREAD for thread in threading.enumerate())


def test_ray_is_not_imported_before_a_sweep_begins() -> None:
    """Ray reads its settings when it is imported, so `settle_ray` must come first."""
    told = "import sys, orchestrator.cluster.metrics; print('ray' in sys.modules)"

    done = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)

    assert done.stdout == "False\n"
