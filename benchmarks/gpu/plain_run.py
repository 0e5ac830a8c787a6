"""An exported script, run as any user runs it: its own lines say how fast it was."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from orchestrator.export.verify import UNSTEADY_STEPS
from search_spaces.errors import UserError
from search_spaces.settings.export_manifest import ExportManifest
from workers.measure.interval import mean_estimate
from workers.measure.steady import warmup_length

_TAIL_LETTERS = 2000


def plain_rate(script: Path, exported: ExportManifest, *, steps: int, seconds: float) -> float:
    """Samples per second by the median of a script's steady steps.

    Plimsoll is not on the path of its process, and its own clock is what counts.

    Raises:
        UserError: If it fails, or takes longer than `seconds`.
    """
    command = [sys.executable, "-P", str(script), "--steps", str(steps)]
    environment = {name: v for name, v in os.environ.items() if name != "PYTHONPATH"}
    try:
        ended = subprocess.run(
            command,
            cwd=script.parent,
            env=environment | dict(exported.environment),
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise UserError(f"{script}: took longer than {seconds:.0f} s") from None
    if ended.returncode:
        raise UserError(f"{script}: ended with {ended.returncode}: {ended.stderr[-_TAIL_LETTERS:]}")
    return rate_of(ended.stdout, exported.plan.global_batch)


def rate_of(said: str, batch: int) -> float:
    """Samples per second from the lines of a script.

    Raises:
        UserError: If it told of too few steps.
    """
    told = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    taken = [batch / line["samples_per_second"] for line in told[UNSTEADY_STEPS:]]
    if not taken:
        raise UserError(f"a plain loop told of {len(told)} steps, which are too few")
    return batch / mean_estimate(taken[warmup_length(taken) :]).value
