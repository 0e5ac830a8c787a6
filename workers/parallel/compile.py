"""Compilation: its needs of the machine, its loading before a trial, and its time."""

import os
import shutil
import sys
import sysconfig
import tempfile
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import torch
from torch._inductor.runtime.cache_dir_utils import default_cache_dir

from search_spaces.safety.files import private_folder
from workers.plain_torch.blocks import reset_compiler

_CACHE = "TORCHINDUCTOR_CACHE_DIR"  # of compiled code, and of Triton's kernels in it
_WARMUP_SIZE = 8
_MIN_CAPABILITY = (7, 0)  # of a CUDA device, for Triton


@cache
def load_compiler(device: torch.device) -> None:
    """Compiles a tiny function, so that what the compiler loads is not in a trial's memory."""

    def compute(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gelu(x @ x).sum()

    default = default_cache_dir()
    try:
        private_folder(Path(default), f"set {_CACHE}")
    except OSError:  # another user made it first, or a link: what is in it would be run here
        torch._inductor.config.cpp_cache_precompile_headers = False  # kept there in any case
        if os.environ.get(_CACHE, default) == default:  # which torch itself may have set
            os.environ[_CACHE] = tempfile.mkdtemp(prefix="plimsoll-inductor-")
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
