"""Commands that a test runs to their end."""

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path


def run_command(
    command: Sequence[str | Path],
    *,
    folder: str | Path | None = None,
    environment: Mapping[str, str] | None = None,
    seconds: float | None = None,
) -> subprocess.CompletedProcess[str]:
    """Runs a command, at most so long; returns its exit code and what it wrote."""
    return subprocess.run(
        command,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
