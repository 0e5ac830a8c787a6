"""What the charts of plans have in common."""

from __future__ import annotations

from orchestrator.planning.expected import Expected
from orchestrator.planning.words import expected_words, interval, percent, significant
from orchestrator.report.charts import hover_text
from orchestrator.view.words import gib


def hover(told: Expected) -> str:
    """What is shown where the pointer rests on a plan."""
    rate = told.samples_per_second
    return hover_text(
        expected_words(told),
        f"{significant(rate.value)} samples/s ({interval(rate)})",
        f"{gib(told.peak_bytes.value)} GiB, fits with {percent(told.fits)}",
    )
