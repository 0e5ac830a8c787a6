"""Pipelines whose stages differ, from the lists that a row's notes hold."""

from __future__ import annotations

import re

from benchmarks.published.cells import Row
from benchmarks.published.values import Stage


def stages_of(row: Row) -> tuple[Stage, ...]:
    """The stages where the notes list `tp per stage [...]` and they differ, else nothing."""
    tensor, data = _listed(row, "tp per stage"), _listed(row, "dp per stage")
    shares = _listed(row, "(?:ops|layers) per stage")
    ratios = _listed(row, "recompute fraction per stage") or (0.0,) * len(tensor)
    if not tensor or not len(tensor) == len(data) == len(shares) == len(ratios):
        return ()
    whole = sum(shares)
    return tuple(
        Stage(share=share / whole, tensor=round(t), data=round(d), checkpoint_ratio=ratio)
        for share, t, d, ratio in zip(shares, tensor, data, ratios, strict=True)
    )


def _listed(row: Row, words: str) -> tuple[float, ...]:
    found = re.search(rf"{words} \[([\d., ]+)\]", row.text("notes"))
    return tuple(float(part) for part in found.group(1).split(",")) if found else ()
