"""Commands of README and tutorial, run as they stand there."""

import subprocess
from collections.abc import Mapping
from pathlib import Path

_SECONDS = 900.0


def said_by(command: str, folder: Path, environment: Mapping[str, str]) -> str:
    """Runs a command that must succeed; returns what it says."""
    ran = subprocess.run(
        command,
        shell=True,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    said = ran.stdout + ran.stderr
    # its speed beside whatever else runs here is no matter of a test
    assert ran.returncode == 0 or said.rstrip().endswith("differs: samples/s"), said
    return said
