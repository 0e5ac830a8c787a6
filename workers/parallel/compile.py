"""Compilation of each block by itself, so that its time stays bounded by one block's."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar

import torch
from torch import nn

_WARMUP_SIZE = 8
_LEAST_CAPABILITY = (7, 0)  # of a CUDA device, for Triton

Forward = TypeVar("Forward", bound=Callable[..., object])


@cache
def load_compiler(device: torch.device) -> None:
    """Compiles next to nothing, so that what the compiler loads is no part of a trial's memory."""

    def compute(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gelu(x @ x).sum()

    ones = torch.ones(_WARMUP_SIZE, _WARMUP_SIZE, device=device, requires_grad=True)
    loss: torch.Tensor = torch.compile(compute)(ones)
    loss.backward()
    forget_compiled()


def compile_blocks(blocks: tuple[nn.Module, ...]) -> None:
    """Compiles each block in place, at its first call; equal blocks share what was compiled.

    Torch compiles for the first width that it meets, and at the second once more for any width.
    """
    forget_compiled()  # also what a trial left that failed before it could
    for block in blocks:
        block.compile()


def in_one_piece(forward: Forward) -> Forward:
    """Keeps DDP from having what is compiled inside `forward` cut at its buckets.

    That is for models that are compiled as a whole, and cannot cut what is recomputed. Blocks are
    small enough for their gradients to be reduced while other blocks compute.
    """
    patched: Forward = torch._dynamo.config.patch(optimize_ddp=False)(forward)
    return patched


def compile_seconds() -> float:
    """Seconds spent on compiling, forward and backward, since the blocks were marked for it."""
    if "torch._dynamo" not in sys.modules:  # takes a second to load
        return 0.0
    return float(torch._dynamo.utils.calculate_time_spent()["total_wall_time"])


def forget_compiled() -> None:
    """Drops what was compiled, and with it what its guards hold; callable at any time."""
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()


def compile_lack(device: torch.device) -> str | None:
    """Why this machine cannot compile for a device, None if it can; nothing is built.

    Source: `torch._inductor.cpp_builder` (g++ or $CXX), Triton's `runtime/build.py` (gcc, clang
    or $CC); what both build includes Python.h.
    """
    if not (Path(sysconfig.get_path("include")) / "Python.h").is_file():
        return "torch.compile needs Python.h: install python3-dev"
    if device.type == "cuda":
        return _cuda_lack(device)
    if shutil.which(os.environ.get("CXX") or "g++") is None:
        return "torch.compile needs a C++ compiler on a CPU: install g++"
    return None


def _cuda_lack(device: torch.device) -> str | None:
    if find_spec("triton") is None:
        return "torch.compile needs Triton on CUDA: install triton"
    if torch.cuda.get_device_capability(device) < _LEAST_CAPABILITY:
        return "torch.compile needs a CUDA device of compute capability 7.0 or more"
    compilers = (os.environ["CC"],) if os.environ.get("CC") else ("gcc", "clang")
    if not any(map(shutil.which, compilers)):
        return "torch.compile needs a C compiler on CUDA: install gcc"
    return None
