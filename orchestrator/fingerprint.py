"""What hardware and software a measurement belongs to."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from search_spaces.extras import DISTRIBUTION
from search_spaces.spec.schema import GIB
from workers.nvml import nvml

# What a measurement depends on; a change of one is reason enough to measure again.
KEY_PACKAGES = (
    "deepspeed",
    "mlflow",
    "numpy",
    "nvidia-ml-py",
    "optuna",
    DISTRIBUTION,
    "pydantic",
    "ray",
    "tokenizers",
    "torch",
    "transformers",
)

_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")  # Linux, cgroup v2
_CPU_INFO = Path("/proc/cpuinfo")


def package_versions(*, every: bool = False) -> tuple[tuple[str, str], ...]:
    """Packages installed here and their versions, sorted by name.

    Args:
        every: All of them; otherwise those of `KEY_PACKAGES`.
    """
    if not every:
        return tuple((name, version) for name in KEY_PACKAGES if (version := _version(name)))
    found: dict[str, str] = {}
    for distribution in metadata.distributions():
        name = distribution.metadata["Name"]
        if name:  # a half-removed package leaves a folder without one
            found.setdefault(re.sub(r"[-_.]+", "-", name).lower(), distribution.version)
    return tuple(sorted(found.items()))


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def system_facts() -> dict[str, Any]:
    """This machine as JSON values: system, CPU, memory, GPUs; None where nobody can say."""
    limit = container_memory_bytes()
    return {
        "host": platform.node(),
        "system": platform.platform(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "cpu": cpu_name(),
        "cores_physical": psutil.cpu_count(logical=False),
        "cores_logical": psutil.cpu_count(),
        "cores_usable": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "memory_gib": round(psutil.virtual_memory().total / GIB, 2),
        "container_memory_gib": None if limit is None else round(limit / GIB, 2),
        "gpus": list(_gpus()),
    }


def cpu_name() -> str:
    """The processor's name, as the kernel has it where there is one that tells."""
    try:
        told = _CPU_INFO.read_text()
    except OSError:
        told = ""
    named = re.search(r"^model name\s*:\s*(.+)$", told, re.MULTILINE)
    return named.group(1).strip() if named else platform.processor() or platform.machine()


def container_memory_bytes() -> int | None:
    """The memory limit of this container in bytes, None without one."""
    try:
        told = _CGROUP_LIMIT.read_text().strip()
    except OSError:
        return None
    return int(told) if told.isdigit() else None  # "max" means that there is no limit


def _gpus() -> Iterator[dict[str, Any]]:
    with nvml() as library:
        if library is None:
            return
        try:
            driver = library.nvmlSystemGetDriverVersion()
            for index in range(library.nvmlDeviceGetCount()):
                handle = library.nvmlDeviceGetHandleByIndex(index)
                total = library.nvmlDeviceGetMemoryInfo(handle).total
                name = library.nvmlDeviceGetName(handle)
                yield {"name": name, "memory_gib": round(total / GIB, 2), "driver": driver}
        except library.NVMLError as error:
            yield {"name": f"unreadable: {error}", "memory_gib": None, "driver": None}
