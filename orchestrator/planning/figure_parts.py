"""What the charts of plans have in common."""

from __future__ import annotations

from orchestrator.planning.expected import Expected
from orchestrator.planning.words import expected_words, interval, percent, significant
from orchestrator.view.words import gib


def hover(told: Expected) -> str:
    """What is shown where the pointer rests on a plan."""
    return (
        f"{expected_words(told)}<br>{significant(told.samples_per_second.value)} samples/s"
        f" ({interval(told.samples_per_second)})<br>{gib(told.peak_bytes.value)} GiB,"
        f" fits with {percent(told.fits)}"
    )
