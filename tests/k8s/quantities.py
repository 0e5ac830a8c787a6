"""Amounts as Kubernetes writes them."""

from __future__ import annotations

import re

_UNITS = {"": 1.0, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_UNITS |= {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}


def amount(quantity: str | int) -> float:
    """Cores, bytes or pieces.

    Raises:
        ValueError: If it is no quantity, such as `4 GiB`.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([a-zA-Z]*)", str(quantity))
    if match is None or match[2] not in _UNITS:
        raise ValueError(f"{quantity!r} is no quantity")
    return float(match[1]) * _UNITS[match[2]]
