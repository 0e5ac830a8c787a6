"""Recognition of out-of-memory errors, on the real error of each allocator.

The allocations request more address space than any machine has, so that they fail everywhere.
"""

import ctypes
import errno
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from workers.memory.meter import OverLimit
from workers.memory.oom import FailedAllocation, failed_allocation

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
TOO_MUCH_BYTES = 2**60


def caught(action: Callable[[], object]) -> BaseException:
    with pytest.raises(BaseException) as raised:  # noqa: PT011  # which one is the question
        action()
    return raised.value


def wanted(error: BaseException, device: torch.device = CPU) -> FailedAllocation | None:
    return failed_allocation(error, device, nearly_full=False)


@pytest.mark.parametrize(
    ("action", "kind", "asked_bytes"),
    [
        (lambda: torch.empty(TOO_MUCH_BYTES, dtype=torch.uint8), RuntimeError, TOO_MUCH_BYTES),
        (lambda: bytes(TOO_MUCH_BYTES), MemoryError, None),
        # beyond 47 bits of addresses
        (lambda: np.ones(200 * 2**40, dtype=np.uint8), MemoryError, 200 * 2**40),
        # std::bad_alloc: the list of 2**40 views of a tensor without memory
        (lambda: torch.empty(2**40, device="meta").split(1), RuntimeError, None),
    ],
    ids=["torch", "python", "numpy", "c++"],
)
def test_an_allocator_says_how_much_or_does_not(
    action: Callable[[], object], kind: type[Exception], asked_bytes: int | None
) -> None:
    error = caught(action)

    assert isinstance(error, kind)
    assert wanted(error) == FailedAllocation(where="device", asked_bytes=asked_bytes)


def test_memory_of_the_host_is_not_that_of_a_gpu() -> None:
    error = caught(lambda: torch.empty(TOO_MUCH_BYTES, dtype=torch.uint8))

    assert wanted(error, CUDA) == FailedAllocation(where="host", asked_bytes=TOO_MUCH_BYTES)


def test_the_kernel_may_say_it_as_an_errno() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    protection, private_anonymous = 3, 0x22
    address = libc.mmap(
        None, ctypes.c_size_t(2**46), protection, private_anonymous, -1, ctypes.c_long(0)
    )
    assert address == ctypes.c_void_p(-1).value
    error = OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    assert error.errno == errno.ENOMEM
    assert wanted(error) == FailedAllocation(where="device", asked_bytes=None)


def test_a_peak_above_the_limit_tells_all_that_was_wanted() -> None:
    assert wanted(OverLimit(300, 100)) == FailedAllocation(
        where="device", asked_bytes=None, total_bytes=300
    )


# The text of torch 2.11 to 2.13 (c10/cuda/CUDACachingAllocator.cpp), written down and not raised:
# this machine has no GPU.
CUDA_TEXT = (
    "CUDA out of memory. Tried to allocate {size}. GPU 0 has a total capacity of 79.25 GiB of"
    " which 4.94 MiB is free. Including non-PyTorch memory, this process has 79.24 GiB memory in"
    " use. Of the allocated memory 78.53 GiB is allocated by PyTorch, and 228.22 MiB is reserved"
    " by PyTorch but unallocated."
)


@pytest.mark.parametrize(
    ("size", "asked_bytes"),
    [
        ("512 bytes", 512),
        ("20.00 KiB", 20 * 2**10),
        ("1.50 MiB", 3 * 2**19),
        ("18.63 GiB", int(18.63 * 2**30)),
    ],
)
def test_the_cuda_allocators_text_says_how_much(size: str, asked_bytes: int) -> None:
    error = torch.OutOfMemoryError(CUDA_TEXT.format(size=size))

    for device in (CPU, CUDA):
        assert wanted(error, device) == FailedAllocation(where="device", asked_bytes=asked_bytes)


# What runs out around torch's allocator, each in its own words: of torch 2.13, NCCL 2.28, Triton 3
# and bitsandbytes 0.50, written down and not raised
AROUND: tuple[tuple[str, str, int | None], ...] = (
    (
        "NCCL error in: ../ProcessGroupNCCL.cpp:3690, unhandled cuda error\nLast error:\n"
        "Cuda failure 2 'out of memory'",
        "device",
        None,
    ),
    ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", "device", None),
    ("CUDA driver error: out of memory", "device", None),
    ("cuDNN error: CUDNN_STATUS_ALLOC_FAILED", "device", None),
    ("Triton Error [CUDA]: out of memory", "device", None),
    ("OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB.", "device", 20 * 2**20),
    (
        "Caught AcceleratorError in pin memory thread for device 0.\nCUDA error: out of memory",
        "host",
        None,
    ),
    ("Error out of memory at line 383 in file /src/csrc/pythonInterface.c", "device", None),
)


@pytest.mark.parametrize(("text", "where", "asked_bytes"), AROUND)
def test_what_runs_out_around_the_allocator_is_out_of_memory(
    text: str, where: str, asked_bytes: int | None
) -> None:
    error = Exception(text) if text.startswith("Error") else RuntimeError(text)
    for each in (error, wrapped(error)):
        found = wanted(each, CUDA)
        assert found is not None
        assert (found.where, found.asked_bytes) == (where, asked_bytes)
    assert wanted(error, CPU) is None  # there is no such library


@pytest.mark.parametrize(("nearly_full", "where"), [(True, "device"), (False, "host")])
def test_cudas_runtime_has_one_text_for_the_device_and_for_pinned_memory(
    nearly_full: bool, where: str
) -> None:
    text = "CUDA error: out of memory\nSearch for `cudaErrorMemoryAllocation' in https://..."
    error = torch.AcceleratorError(text)

    found = failed_allocation(error, CUDA, nearly_full=nearly_full)
    assert found is not None
    assert found.where == where


def wrapped(error: Exception) -> Exception:
    """Returns an error of a compiler or loader that was raised because of another."""
    try:
        raise ValueError("backend failed") from error
    except ValueError as raised:
        return raised


@pytest.mark.parametrize("text", ["could not create a primitive", "could not execute a primitive"])
def test_a_vague_text_means_memory_only_when_little_is_left(text: str) -> None:
    error = RuntimeError(text)

    assert failed_allocation(error, CPU, nearly_full=False) is None
    assert failed_allocation(error, CPU, nearly_full=True) is not None


@pytest.mark.parametrize(
    "action",
    [
        lambda: torch.ones(2) @ torch.ones(3),
        lambda: torch.ones(2, device="meta").item(),
        lambda: {}["missing"],
        lambda: Path("/no/such/file").read_text(),
        lambda: 1 / 0,
    ],
    ids=["shapes", "meta", "key", "file", "zero"],
)
def test_other_errors_are_not_out_of_memory(action: Callable[[], object]) -> None:
    assert failed_allocation(caught(action), CPU, nearly_full=True) is None


@pytest.mark.parametrize(
    ("text", "asked_bytes", "total_bytes"),
    # of XLA's allocator, of its compiler, and of torch_tpu 0.2.0
    [
        (
            "RESOURCE_EXHAUSTED: Error allocating device buffer: Attempting to allocate 1.50G."
            " That was not possible. There are 1.29G free.; (0x0x0_HBM0)",
            3 * 2**29,
            None,
        ),
        (
            "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space"
            " hbm. Used 38.5G of 15.48G hbm. Exceeded hbm capacity by 23.02G.",
            None,
            77 * 2**29,
        ),
        ("the TPU ran out of memory while awaiting the materialization of value x", None, None),
    ],
)
def test_a_tpu_says_it_in_xlas_words(
    text: str, asked_bytes: int | None, total_bytes: int | None
) -> None:
    tpu: Any = SimpleNamespace(type="tpu")  # torch has the name only with torch_tpu
    failed = FailedAllocation(where="device", asked_bytes=asked_bytes, total_bytes=total_bytes)

    assert wanted(RuntimeError(text), tpu) == failed
    assert wanted(RuntimeError("a shape does not fit"), tpu) is None
    assert wanted(RuntimeError(text)) is None
