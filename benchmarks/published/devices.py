"""Devices as tables write them: a clean name, memory and generation."""

import re

from benchmarks.published.cells import Row, UnusableRowError
from benchmarks.published.values import Generation

# Source: NVIDIA's and AMD's lists of products by architecture. The first that matches counts.
_GENERATIONS: tuple[tuple[str, Generation], ...] = (
    (r"\bg?b[23]00", "blackwell"),
    (r"rtx ?50\d\d", "blackwell"),
    (r"\bgh200|\bh[128]00|\bh20\b", "hopper"),
    (r"\bl4\b|\bl40|rtx ?40\d\d|6000 ada", "ada"),
    (r"\ba100|\ba800|\ba10g?\b|\ba30\b|\ba40\b|\ba[4-6]000|rtx ?30\d\d", "ampere"),
    (r"\bt4\b|titan rtx|rtx ?20\d\d|quadro rtx", "turing"),
    (r"\bv100|titan v", "volta"),
    (r"\bmi\d{2,3}", "cdna"),
)
OLD = frozenset(("volta", "turing"))  # no bf16, no flash attention in PyTorch
NEW = frozenset(("hopper", "blackwell"))


def device_of(row: Row) -> str:
    """The GPU's name as written, less remarks in parentheses and question marks.

    Raises:
        UnusableRowError: If there is none.
    """
    name = re.sub(r"\([^)]*\)|\?", " ", row.written("gpu"))
    name = " ".join(name.split())
    if not name:
        raise UnusableRowError("no GPU")
    return name


def generation_of(device: str) -> Generation:
    """The generation of a device, from its name."""
    for pattern, generation in _GENERATIONS:
        if re.search(pattern, device.lower()):
            return generation
    return "unknown"


def memory_gib(row: Row, device: str) -> float | None:
    """Memory of one device in GiB: the column's, else what the name says, else None."""
    stated = row.number("gpu_mem_gib")
    if stated:
        return stated
    named = re.search(r"(\d+) ?gi?b", device.lower())
    return float(named.group(1)) if named else None
