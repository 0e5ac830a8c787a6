"""Compilation: its needs of the machine, its loading before a trial, and its time."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
import tempfile
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import torch

from search_spaces.safety.files import private_folder
from workers.models.disk_cache import cache_folder
from workers.plain_torch.blocks import reset_compiler

_CACHE = "TORCHINDUCTOR_CACHE_DIR"  # of compiled code, and of Triton's kernels in it
_WARMUP_SIZE = 8
_MIN_CAPABILITY = (7, 0)  # of a CUDA device, for Triton


@cache
def load_compiler(device: torch.device) -> None:
    """Compiles a tiny function, so that what the compiler loads is not in a trial's memory."""

    def compute(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gelu(x @ x).sum()

    if _CACHE not in os.environ:  # torch's folder in /tmp may be one that somebody else made first
        try:
            folder = str(private_folder(cache_folder("inductor"), f"set {_CACHE}"))
        except OSError:
            folder = tempfile.mkdtemp(prefix="plimsoll-inductor-")
        os.environ[_CACHE] = folder
    ones = torch.ones(_WARMUP_SIZE, _WARMUP_SIZE, device=device, requires_grad=True)
    loss: torch.Tensor = torch.compile(compute)(ones)
    loss.backward()
    reset_compiler()


def compile_seconds() -> float:
    """Returns seconds of compilation, forward and backward, since `compile_blocks`."""
    if "torch._dynamo" not in sys.modules:  # its import takes a second
        return 0.0
    return float(torch._dynamo.utils.calculate_time_spent()["total_wall_time"])


def missing_for_compile(device: torch.device) -> str | None:
    """Returns the reason why this machine cannot compile for a device, None if it can.

    It builds nothing.

    Source: `torch._inductor.cpp_builder` (g++ or $CXX), Triton's `runtime/build.py` (gcc, clang
    or $CC); both include Python.h.
    """
    if not (Path(sysconfig.get_path("include")) / "Python.h").is_file():
        return "torch.compile needs Python.h: install python3-dev"
    if device.type == "cuda":
        return _missing_for_cuda(device)
    if shutil.which(os.environ.get("CXX") or "g++") is None:
        return "torch.compile needs a C++ compiler on a CPU: install g++"
    return None


def _missing_for_cuda(device: torch.device) -> str | None:
    if find_spec("triton") is None:
        return "torch.compile needs Triton on CUDA: install triton"
    if torch.cuda.get_device_capability(device) < _MIN_CAPABILITY:
        return "torch.compile needs a CUDA device of compute capability 7.0 or higher"
    compilers = (os.environ["CC"],) if os.environ.get("CC") else ("gcc", "clang")
    if not any(map(shutil.which, compilers)):
        return "torch.compile needs a C compiler on CUDA: install gcc"
    return None
