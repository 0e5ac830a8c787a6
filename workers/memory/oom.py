"""Out-of-memory errors: which exception is one, and how many bytes it wanted.

Each allocator says it in its own way. The texts are of torch 2.11 to 2.13 (`CUDACachingAllocator`,
`alloc_cpu.cpp`) and NumPy 2 (`_ArrayMemoryError`); each has a test that makes the real one.
"""

from __future__ import annotations

import errno
import re
from dataclasses import dataclass
from typing import Literal

import torch

from workers.memory.meter import OverLimit

_UNITS = {"bytes": 1, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_CUDA = re.compile(r"[Tt]ried to allocate ([\d.]+) (bytes|KiB|MiB|GiB|TiB)")
_CPU = re.compile(r"can't allocate memory: you tried to allocate (\d+) bytes")
_NUMPY = re.compile(r"Unable to allocate ([\d.]+) (bytes|B|KiB|MiB|GiB|TiB)")
_BARE = ("std::bad_alloc", "bad allocation", "Cannot allocate memory", "DefaultCPUAllocator")
_VAGUE = ("could not create a primitive", "could not execute a primitive")  # oneDNN


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryWanted:
    """What an allocation asked for when it failed; `asked_bytes` is None if nobody said.

    `total_bytes` is all that was wanted, where that is known and not only the last request.
    """

    where: Literal["device", "host"]
    asked_bytes: int | None
    total_bytes: int | None = None


def memory_wanted(
    error: BaseException, device: torch.device, *, nearly_full: bool
) -> MemoryWanted | None:
    """What the error wanted, or None if it is not out of memory.

    On a CPU device the host's memory is the device's: it is what the budget limits.

    Args:
        error: What was raised.
        device: Where training runs.
        nearly_full: Whether little was left of the limit; some texts say "could not" alone, and
            mean memory only then.
    """
    text = str(error)
    host: Literal["device", "host"] = "device" if device.type == "cpu" else "host"
    if isinstance(error, OverLimit):
        return MemoryWanted(where="device", asked_bytes=None, total_bytes=error.wanted_bytes)
    if isinstance(error, torch.OutOfMemoryError):
        return MemoryWanted(where="device", asked_bytes=_bytes(_CUDA.search(text)))
    if isinstance(error, MemoryError):
        return MemoryWanted(where=host, asked_bytes=_bytes(_NUMPY.search(text)))
    if isinstance(error, OSError) and error.errno == errno.ENOMEM:
        return MemoryWanted(where=host, asked_bytes=None)
    if isinstance(error, RuntimeError):
        if match := _CPU.search(text):
            return MemoryWanted(where=host, asked_bytes=int(match[1]))
        phrases = (*_BARE, *_VAGUE) if nearly_full else _BARE
        if any(phrase in text for phrase in phrases):
            return MemoryWanted(where=host, asked_bytes=None)
    return None


def _bytes(match: re.Match[str] | None) -> int | None:
    return None if match is None else int(float(match[1]) * _UNITS[match[2]])
