"""DeepSpeed's optional features: requirements that this machine lacks, and their loading."""

import contextlib
import ctypes.util
import fcntl
import importlib
import importlib.util
import logging
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import torch
from torch.utils import cpp_extension

from search_spaces.errors import missing_extra

_MODULES = (  # DeepSpeed, and modules that it would import in the middle of a trial
    "functorch.compile",
    "deepspeed",
    "deepspeed.runtime.zero.muon.muon_optimizer",
    "deepspeed.runtime.superoffload.superoffload_stage3",
)
_LIBAIO_HEADER = Path("include/libaio.h")
_PREFIXES = (Path("/usr"), Path("/usr/local"))


def load_deepspeed(device: torch.device) -> None:
    """Imports DeepSpeed, which takes seconds and about 160 MiB, and silences its log.

    DeepSpeed picks its accelerator at the first import: CUDA if there is a device, unless
    `DS_ACCELERATOR` is set. On CPUs it would compile an all-reduce for inference when ranks
    connect, a minute for what no training calls; it does not where that counts as incompatible.

    Source:
        deepspeed/comm/torch.py (0.19), `build_shm_op`.
    """
    if device.type == "cpu":
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    for module in _MODULES:
        with contextlib.suppress(ModuleNotFoundError):  # not in every version
            importlib.import_module(module)
    if (ops := sys.modules.get("deepspeed.ops")) is not None:
        ops.__compatible_ops__["deepspeed_shm_comm"] = False
    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)


def load_cpu_adam() -> None:
    """Loads the Adam that updates on the host; its first use on a machine compiles it."""
    _load_extension("CPUAdamBuilder")


def load_nvme() -> None:
    """Loads the extensions for NVMe offload; their first use on a machine compiles them."""
    _load_extension("PinMemoryBuilder")  # else the next one would load it, without our lock
    _load_extension("AsyncIOBuilder")


@cache
def _load_extension(builder_name: str) -> None:
    """Compiles in one rank while the others wait; loading needs no lock.

    A process that is killed while it compiles leaves torch's lock file, on which all later
    processes would wait forever. A kernel lock ends with its process, so its holder may delete
    the file.
    """
    builder = getattr(importlib.import_module("deepspeed.ops.op_builder"), builder_name)()
    folder = Path(cpp_extension._get_build_directory(builder.name, verbose=False))
    with (folder / "plimsoll.lock").open("w") as lock, _environment_ninja():
        fcntl.flock(lock, fcntl.LOCK_EX)
        (folder / "lock").unlink(missing_ok=True)
        builder.load(verbose=False)


@contextlib.contextmanager
def _environment_ninja() -> Iterator[None]:
    """Puts this environment's ninja first in PATH, even if the environment is not activated.

    Two versions of ninja do not read each other's logs: each would recompile what the other has.
    """
    path = os.environ.get("PATH", "")
    with contextlib.suppress(
        ModuleNotFoundError
    ):  # then the system's, or `_missing_for_compiler` says so
        os.environ["PATH"] = os.pathsep.join((importlib.import_module("ninja").BIN_DIR, path))
    try:
        yield
    finally:
        os.environ["PATH"] = path


def missing_for_deepspeed() -> str | None:
    """Returns the reason why engine deepspeed does not run here, None if it does."""
    return missing_extra("deepspeed")


def missing_for_fp16(device: torch.device) -> str | None:
    """Returns the reason why DeepSpeed cannot compute in fp16 on the device, None if it can.

    Source: deepspeed/accelerator/cpu_accelerator.py, `is_fp16_supported`.
    """
    if device.type == "cuda" or torch.ops.mkldnn._is_mkldnn_fp16_supported():
        return None
    return "DeepSpeed refuses fp16 on this CPU: oneDNN does not support it; use bf16"


def missing_for_cpu_adam() -> str | None:
    """Returns the reason why DeepSpeed's Adam on the host cannot run here, None if it can."""
    return missing_for_deepspeed() or _missing_for_compiler("DeepSpeedCPUAdam")


def missing_for_nvme(device: torch.device) -> str | None:
    """Returns the reason why DeepSpeed cannot offload to NVMe here, None if it can.

    Args:
        device: Where the model trains. For a GPU, async_io is built with CUDA's compiler.
    """
    if lack := missing_for_cpu_adam() or _missing_for_compiler("DeepSpeed's async_io"):
        return lack
    headers = [prefix / _LIBAIO_HEADER for prefix in _PREFIXES]
    if ctypes.util.find_library("aio") is None or not any(map(Path.is_file, headers)):
        return (
            "DeepSpeed's async_io needs libaio and its headers:"
            " apt-get install libaio-dev (Debian, Ubuntu), dnf install libaio-devel (Fedora)"
        )
    on_nvidia = device.type == "cuda" and torch.version.hip is None
    return _missing_for_nvcc("DeepSpeed's async_io") if on_nvidia else None


def _missing_for_nvcc(what: str) -> str | None:
    """Returns the reason why an extension of DeepSpeed cannot be built for CUDA, None if it can.

    Source: deepspeed/ops/op_builder/builder.py (0.19), `assert_no_cuda_mismatch`: the versions of
    nvcc and torch have the same first number.
    """
    home, wanted = cpp_extension.CUDA_HOME, str(torch.version.cuda)
    nvcc = None if home is None else shutil.which("nvcc", path=str(Path(home) / "bin"))
    if nvcc is None:
        return f"{what} is built with nvcc of CUDA {wanted}, which is missing: install the toolkit"
    told = subprocess.run([nvcc, "-V"], capture_output=True, text=True, check=False).stdout
    release = re.search(r"release (\d+)\.(\d+)", told)
    if release is None:
        return f"{what} is built with {nvcc}, which does not run: install the toolkit of {wanted}"
    if release.group(1) != wanted.partition(".")[0]:
        return (
            f"{what} is built with nvcc {'.'.join(release.groups())}, but torch is built for CUDA"
            f" {wanted}: install that toolkit, or set CUDA_HOME to it"
        )
    return None


def _missing_for_compiler(what: str) -> str | None:
    compiler = cpp_extension.get_cxx_compiler()
    if shutil.which(compiler) is None:
        return f"{what} is compiled on first use, but {compiler} is missing: install g++"
    if importlib.util.find_spec("ninja") is None and shutil.which("ninja") is None:
        return f"{what} is compiled on first use, but ninja is missing: pip install ninja"
    return None
