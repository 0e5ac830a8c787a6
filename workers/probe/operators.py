"""Compiles DeepSpeed's operators, once on a machine, before the clock of a sweep starts.

DeepSpeed ships C++ and compiles what is first used, which takes a minute or a few. Ranks on other
machines compile as they start (`workers/engines/build.py`).
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

from search_spaces.errors import missing_extra
from search_spaces.safety.files import write_durably
from search_spaces.specification.schema import SweepSpec
from search_spaces.trial import Activity, ActivityKind

COMPILE_SECONDS = 1200.0  # after which a compilation counts as hung


def compile_operators(
    spec: SweepSpec, show: Callable[[Activity], None], say: Callable[[str], None]
) -> float:
    """Compiles what plans of a sweep may need on this machine; silent if that was done before.

    A failure ends nothing: trials that need the operator report it. Returns the seconds that it
    took, 0 without a compilation.

    Args:
        spec: Its space says whether DeepSpeed is searched, and which offload.
        show: Called before it starts.
        say: Receives a line if it fails.
    """
    space, on_gpu = spec.space, spec.cluster.device != "cpu"
    usual = ("cpu",) if on_gpu and space.offload_optimizer is None else ()  # as in `load_engines`
    named = {*spec.named("offload_optimizer"), *spec.named("offload_parameters")}
    places = {*usual, *named} - {"none"}
    if "deepspeed" not in spec.named("engine") or not places or missing_extra("deepspeed"):
        return 0.0
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = Path(os.environ.get("TORCH_EXTENSIONS_DIR") or cache / "torch_extensions")
    versions = f"{version('deepspeed')}-{version('torch')}-{sys.version_info.minor}"
    done = folder / "-".join(("plimsoll", versions, spec.cluster.device, *sorted(places)))
    if done.exists():
        return 0.0
    began_at = time.monotonic()
    show(Activity(kind=ActivityKind.COMPILING_OPERATORS))
    command = [sys.executable, "-P", "-m", __name__]
    text = spec.model_dump_json().encode()
    try:
        subprocess.run(
            command, input=text, capture_output=True, timeout=COMPILE_SECONDS, check=True
        )
        write_durably(done, b"")
    except (subprocess.SubprocessError, OSError) as error:
        lines = (getattr(error, "stderr", None) or b"").decode(errors="replace").split("\n")
        cause = next((line for line in reversed(lines) if line.strip()), str(error))
        say(f"DeepSpeed's operators could not be loaded: {cause}")
        return 0.0
    return time.monotonic() - began_at


def _load() -> None:
    from workers.engines.build import load_engines
    from workers.worker import pick_device

    spec = SweepSpec.model_validate_json(sys.stdin.read())
    load_engines(spec, pick_device(spec.cluster.device, local_rank=0))


if __name__ == "__main__":
    _load()
