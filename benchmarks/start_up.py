"""Processor time of commands that run nothing, from the start of Python to their end.

    python -m benchmarks.start_up [--repeats 7] [--out FILE]

Each command runs several times in a process of its own, and its least user and system time counts:
whatever else runs on the machine only adds to it. Each runs once before it is counted, so that
facts and footprints are cached, as from a user's second command on.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.output import write

LIMIT_SECONDS = 0.5  # of commands that need no model
_NO_BYTECODE = "PYTHONDONTWRITEBYTECODE"
_QUICK = {
    "--help": ["--help"],
    "models": ["models"],
    "schema": ["schema"],
    "init": ["init", "sweep.yaml", "--force"],
}
_EXAMPLE = str(Path("examples/one_gpu.yaml").absolute())
_PRESET = {
    "check of a preset": ["check", _EXAMPLE],
    "plan of a preset": ["plan", _EXAMPLE, "--gpu", "H100", "--json"],
}


def processor_seconds(arguments: list[str], folder: Path) -> float:
    """Returns the user and system time of a command and its children."""
    before = os.times()
    command = [sys.executable, "-m", "plimsoll", *arguments]
    # without this variable compiled modules are kept, as an installation has them
    environment = {name: value for name, value in os.environ.items() if name != _NO_BYTECODE}
    subprocess.run(
        command,
        cwd=folder,
        env=environment,
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    after = os.times()
    return (
        after.children_user + after.children_system - before.children_user - before.children_system
    )


def main() -> None:
    """Measures and prints; exits with 1 if a quick command takes longer than the limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    seconds: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, arguments in (_QUICK | _PRESET).items():
            processor_seconds(arguments, Path(folder))
            least = min(processor_seconds(arguments, Path(folder)) for _ in range(options.repeats))
            seconds[name] = round(least, 3)
            print(f"{name:20} {least:.2f} s", flush=True)
    write({"processor_seconds": seconds}, options.out)
    sys.exit(any(seconds[name] >= LIMIT_SECONDS for name in _QUICK))


if __name__ == "__main__":
    main()
