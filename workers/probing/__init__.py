"""Measures the machine that it runs on: what the device, its links, host and drive can do."""

from workers.probing.describe import describe
from workers.probing.effort import Effort, usual_effort
from workers.probing.findings import Findings
from workers.probing.group import probe_ranks

__all__ = ["Effort", "Findings", "describe", "probe_ranks", "usual_effort"]
