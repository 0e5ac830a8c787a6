"""Numbers in words."""

from __future__ import annotations


def count_words(count: int) -> str:
    """A count with three digits and its unit: 1.24 B, 345 M, 12 k."""
    for factor, unit in ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "k")):
        if count >= factor:
            return f"{count / factor:#.3g} {unit}".replace(". ", " ")
    return str(count)
