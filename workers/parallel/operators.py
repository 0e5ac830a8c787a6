"""Compiles DeepSpeed's operators, once on a machine, before the clock of a sweep starts.

DeepSpeed ships C++ and compiles what is first used, which takes a minute or a few. Ranks on other
machines compile as they start (`workers/engines/build.py`).
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

from search_spaces.errors import missing_extra
from search_spaces.spec.schema import SweepSpec

COMPILE_SECONDS = 1200.0  # after which a compilation counts as hung


def compile_operators(spec: SweepSpec, say: Callable[[str], None]) -> None:
    """Compiles what plans of a sweep may need on this machine; silent if that was done before.

    A failure ends nothing: trials that need the operator report it.

    Args:
        spec: Its space says whether DeepSpeed is searched, and which offload.
        say: Receives a line before it starts, and one if it fails.
    """
    if "deepspeed" not in (spec.space.engine or ()) or missing_extra("deepspeed"):
        return
    done = _marker(spec)
    if done.exists():
        return
    say("loading DeepSpeed's operators, which are compiled once on a machine: a minute or a few")
    command = [sys.executable, "-P", "-m", "workers.parallel.operators"]
    try:
        ended = subprocess.run(
            command,
            input=spec.model_dump_json(),
            capture_output=True,
            text=True,
            timeout=COMPILE_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        say(f"DeepSpeed's operators were not compiled within {COMPILE_SECONDS:.0f} s")
        return
    if ended.returncode:
        last = ended.stderr.strip().splitlines()[-1:] or [f"exit code {ended.returncode}"]
        say(f"DeepSpeed's operators could not be loaded: {last[0]}")
        return
    done.parent.mkdir(parents=True, exist_ok=True)
    done.touch()


def _marker(spec: SweepSpec) -> Path:
    """Returns the file that says so, which goes with the folder of the compiled operators."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = Path(os.environ.get("TORCH_EXTENSIONS_DIR") or cache / "torch_extensions")
    space = spec.space
    words = (
        *(f"{name} {version(name)}" for name in ("torch", "deepspeed")),
        f"python {sys.version_info.major}.{sys.version_info.minor}",
        f"{spec.cluster.device} {space.offload_optimizer} {space.offload_parameters}",
    )
    return folder / f"plimsoll-{hashlib.sha256(repr(words).encode()).hexdigest()[:16]}"


def _load() -> None:
    from workers.engines.build import load_engines
    from workers.worker import pick_device

    spec = SweepSpec.model_validate_json(sys.stdin.read())
    load_engines(spec, pick_device(spec.cluster.device, local_rank=0))


if __name__ == "__main__":
    _load()
