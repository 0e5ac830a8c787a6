"""`plimsoll doctor`: what this machine can do, and how to mend what it cannot."""

from __future__ import annotations

import os
import platform

import psutil
from rich.table import Table
from rich.text import Text

from orchestrator.cli.console import page, say
from orchestrator.fingerprint import package_versions
from search_spaces.spec.schema import GIB


def doctor() -> None:
    """Say what this machine can do: devices, memory, packages, and what each knob needs."""
    from workers.doctor import cuda_devices, survey

    devices = cuda_devices()
    memory = psutil.virtual_memory()
    say(
        f"{platform.system()} {platform.release()}, Python {platform.python_version()},"
        f" {os.cpu_count()} CPU cores, {memory.total / GIB:.0f} GiB memory"
        f" ({memory.available / GIB:.0f} GiB free)"
    )
    for index, device in enumerate(devices):
        say(f"cuda:{index} {device}")
    if not devices:
        say("no CUDA device: ranks train on the CPU, over gloo")
    say(", ".join(f"{name} {version}" for name, version in package_versions()))
    say("")
    table = Table(box=None, pad_edge=False)
    table.add_column("feature", no_wrap=True)
    table.add_column("for")
    table.add_column("here")
    for feature in survey("cuda" if devices else "cpu"):
        here = Text("yes", "green") if feature.lack is None else Text(feature.lack, "yellow")
        table.add_row(feature.name, feature.serves, here)
    page().print(table)
