"""Recognizes out-of-memory errors, and reads the bytes that they wanted.

Each allocator has its own text. These are from torch 2.11 to 2.13 (`CUDACachingAllocator`,
`alloc_cpu.cpp`) and NumPy 2 (`_ArrayMemoryError`). Each has a test that provokes the real error.
"""

import errno
import re
from dataclasses import dataclass
from typing import Literal

import torch

from search_spaces.errors import exception_chain
from workers.memory.meter import OverLimit

_UNITS = {"bytes": 1, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_UNITS |= {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_CUDA = re.compile(r"[Tt]ried to allocate ([\d.]+) (bytes|KiB|MiB|GiB|TiB)")
_CPU = re.compile(r"can't allocate memory: you tried to allocate (\d+) bytes")
_NUMPY = re.compile(r"Unable to allocate ([\d.]+) (bytes|B|KiB|MiB|GiB|TiB)")
# of XLA's allocator, and of its compiler, which counts a whole program
_TPU_ASKED = re.compile(r"Attempting to (?:allocate|reserve) ([\d.]+)([KMGT])")
_TPU_TOTAL = re.compile(r"Used ([\d.]+)([KMGT]) of")
_ON_TPU = ("RESOURCE_EXHAUSTED", "TPU ran out of memory")
_BARE = ("std::bad_alloc", "bad allocation", "Cannot allocate memory", "DefaultCPUAllocator")
_VAGUE = ("could not create a primitive", "could not execute a primitive")  # oneDNN
# CUDA's runtime and driver, cuBLAS, cuDNN, NCCL, Triton and bitsandbytes, each in its own words.
# They allocate around torch's allocator, which keeps a reserve for them (device_runtime.py)
_AROUND = ("out of memory", "ALLOC_FAILED", "cudaErrorMemoryAllocation")
_RUNTIME = "CUDA error: out of memory"
_ON_HOST = ("pin memory thread", "HostAlloc", "pinned")


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedAllocation:
    """Memory that a failed allocation wanted.

    `asked_bytes` is the failed request, None if the error does not state it. `total_bytes` is
    set instead if the total is known.
    """

    where: Literal["device", "host"]
    asked_bytes: int | None
    total_bytes: int | None = None


def failed_allocation(
    error: BaseException, device: torch.device, *, nearly_full: bool
) -> FailedAllocation | None:
    """Returns the memory that an error wanted, None if it is not out of memory.

    The error's causes and contexts count too: compilers and loaders raise errors of their own. On a
    CPU device, host memory is device memory: the budget limits it.

    Args:
        error: The exception.
        device: The device of the training.
        nearly_full: The limit was almost reached. Some errors only say "could not", and mean
            memory only then.
    """
    chain = tuple(exception_chain(error))
    if device.type == "tpu" and (found := next(filter(None, map(_failed_on_tpu, chain)), None)):
        return found
    failed = (_failed(each, device, nearly_full=nearly_full) for each in chain)
    return next(filter(None, failed), None)


def _failed_on_tpu(error: BaseException) -> FailedAllocation | None:
    text = str(error)
    if not any(phrase in text for phrase in _ON_TPU):
        return None
    asked, total = (_bytes(pattern.search(text)) for pattern in (_TPU_ASKED, _TPU_TOTAL))
    return FailedAllocation(where="device", asked_bytes=asked, total_bytes=total)


def _failed(
    error: BaseException, device: torch.device, *, nearly_full: bool
) -> FailedAllocation | None:
    text = str(error)
    host: Literal["device", "host"] = "device" if device.type == "cpu" else "host"
    if isinstance(error, OverLimit):
        return FailedAllocation(where="device", asked_bytes=None, total_bytes=error.wanted_bytes)
    if isinstance(error, torch.OutOfMemoryError):
        return FailedAllocation(where="device", asked_bytes=_bytes(_CUDA.search(text)))
    if isinstance(error, MemoryError):
        return FailedAllocation(where=host, asked_bytes=_bytes(_NUMPY.search(text)))
    if isinstance(error, OSError) and error.errno == errno.ENOMEM:
        return FailedAllocation(where=host, asked_bytes=None)
    if isinstance(error, RuntimeError):
        if match := _CPU.search(text):
            return FailedAllocation(where=host, asked_bytes=int(match[1]))
        phrases = (*_BARE, *_VAGUE) if nearly_full else _BARE
        if any(phrase in text for phrase in phrases):
            return FailedAllocation(where=host, asked_bytes=None)
    if device.type == "cuda" and any(phrase in text for phrase in _AROUND):
        # the runtime has the same words for pinned memory of the host
        pinned = _RUNTIME in text and not nearly_full
        return FailedAllocation(
            where="host" if pinned or any(phrase in text for phrase in _ON_HOST) else "device",
            asked_bytes=_bytes(_CUDA.search(text)),
        )
    return None


def _bytes(match: re.Match[str] | None) -> int | None:
    return None if match is None else int(float(match[1]) * _UNITS[match[2]])
