"""DeepSpeed's features: what this machine lacks for them, and loading what they compile."""

from __future__ import annotations

import contextlib
import ctypes.util
import fcntl
import importlib
import importlib.util
import logging
import os
import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import torch
from torch.utils import cpp_extension

from search_spaces.errors import extra_lack

_MODULES = (  # DeepSpeed, and what it would import in the middle of a trial
    "functorch.compile",
    "deepspeed",
    "deepspeed.runtime.zero.muon.muon_optimizer",
    "deepspeed.runtime.superoffload.superoffload_stage3",
)


_LIBAIO_HEADER = Path("include/libaio.h")


_PREFIXES = (Path("/usr"), Path("/usr/local"))


def load_deepspeed(device: torch.device) -> None:
    """Imports DeepSpeed, which takes seconds and some 160 MiB, and keeps it quiet.

    It picks its accelerator once, when it is first imported: CUDA wherever there is a device,
    unless it is told otherwise.
    """
    if device.type == "cpu":
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    for module in _MODULES:
        with contextlib.suppress(ModuleNotFoundError):  # of another version
            importlib.import_module(module)
    if device.type == "cpu" and cpu_adam_lack() is None:
        _load_extension("ShareMemCommBuilder")  # else DeepSpeed does when ranks meet
    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)


def load_cpu_adam() -> None:
    """Loads the Adam that updates on the host; the first time on a machine it is compiled."""
    _load_extension("CPUAdamBuilder")


def load_nvme() -> None:
    """Loads what reads and writes NVMe; the first time on a machine it is compiled."""
    _load_extension("AsyncIOBuilder")


@cache
def _load_extension(builder_name: str) -> None:
    """Compiles in one rank while the others wait; what is loaded waits for nobody.

    torch leaves a lock file when a process is killed while it compiles, on which all later ones
    would wait without end. The kernel's own lock goes with its process: who holds that one may
    clear the other away.
    """
    builder = getattr(importlib.import_module("deepspeed.ops.op_builder"), builder_name)()
    folder = Path(cpp_extension._get_build_directory(builder.name, verbose=False))
    with (folder / "plimsoll.lock").open("w") as lock, _one_ninja():
        fcntl.flock(lock, fcntl.LOCK_EX)
        (folder / "lock").unlink(missing_ok=True)
        builder.load(verbose=False)


@contextlib.contextmanager
def _one_ninja() -> Iterator[None]:
    """Lets torch find this environment's ninja, whether or not the environment is activated.

    Two versions do not know each other's records: each would compile again what the other has.
    """
    before = os.environ.get("PATH", "")
    with contextlib.suppress(ModuleNotFoundError):  # then there is a system's, or `_compiler_lack`
        os.environ["PATH"] = os.pathsep.join((importlib.import_module("ninja").BIN_DIR, before))
    try:
        yield
    finally:
        os.environ["PATH"] = before


def deepspeed_lack() -> str | None:
    """Why engine deepspeed does not run here, None if it does."""
    return extra_lack("deepspeed")


def fp16_lack(device: torch.device) -> str | None:
    """Why DeepSpeed does not compute in fp16 on the device, None if it does.

    Source: deepspeed/accelerator/cpu_accelerator.py, `is_fp16_supported`.
    """
    if device.type == "cuda" or torch.ops.mkldnn._is_mkldnn_fp16_supported():
        return None
    return "DeepSpeed refuses fp16 on this CPU: oneDNN has no fp16 for it; use bf16"


def cpu_adam_lack() -> str | None:
    """Why DeepSpeed's Adam for offloaded states cannot run here, None if it can."""
    return deepspeed_lack() or _compiler_lack("DeepSpeedCPUAdam")


def nvme_lack() -> str | None:
    """Why DeepSpeed cannot offload to NVMe here, None if it can."""
    if lack := cpu_adam_lack() or _compiler_lack("DeepSpeed's async_io"):
        return lack
    headers = [prefix / _LIBAIO_HEADER for prefix in _PREFIXES]
    if ctypes.util.find_library("aio") is None or not any(map(Path.is_file, headers)):
        return (
            "DeepSpeed's async_io needs libaio and its headers:"
            " apt-get install libaio-dev (Debian, Ubuntu), dnf install libaio-devel (Fedora)"
        )
    return None


def _compiler_lack(what: str) -> str | None:
    """An extension is compiled when it is first used on a machine, and kept."""
    compiler = cpp_extension.get_cxx_compiler()
    if shutil.which(compiler) is None:
        return f"{what} is compiled when it is first used, and there is no {compiler}: install g++"
    if importlib.util.find_spec("ninja") is None and shutil.which("ninja") is None:
        return f"{what} is compiled when it is first used, which needs ninja: pip install ninja"
    return None
