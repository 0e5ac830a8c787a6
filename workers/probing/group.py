"""Starts the ranks of a probe, and sees to it that they end."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from torch.multiprocessing.spawn import (
    ProcessContext,
    ProcessExitedException,
    ProcessRaisedException,
    spawn,
)

from search_spaces.errors import ClusterError
from workers.probing.effort import Effort
from workers.probing.findings import Findings
from workers.probing.rank import FINDINGS, measure

_POLL_SECONDS = 1.0


def probe_ranks(effort: Effort, *, drive: Path) -> Findings:
    """Measures with real processes, one for each rank; none of them outlives the call.

    Args:
        effort: What is measured, and how long at most.
        drive: A folder on the drive whose speed counts; a file is written there and deleted.

    Raises:
        ClusterError: If the folder cannot be used, a rank fails or time runs out.
    """
    if not drive.is_dir():
        raise ClusterError(f"{drive} is no folder; name one on the drive to be measured")
    with tempfile.TemporaryDirectory(prefix="plimsoll-probe-") as name:
        exchange = Path(name)
        with _spawned(effort, drive.absolute(), exchange) as ranks:
            _join(ranks, effort.timeout_seconds)
        return FINDINGS.validate_json((exchange / "findings.json").read_bytes())


@contextlib.contextmanager
def _spawned(effort: Effort, drive: Path, exchange: Path) -> Iterator[ProcessContext]:
    ranks: ProcessContext = spawn(
        measure, args=(effort, drive, exchange), nprocs=effort.ranks, join=False, daemon=True
    )
    try:
        yield ranks
    finally:
        for process in ranks.processes:
            process.kill()  # does nothing to one that has ended
            process.join()


def _join(ranks: ProcessContext, timeout_seconds: float) -> None:
    deadline = time.monotonic() + timeout_seconds
    try:
        while not ranks.join(timeout=_POLL_SECONDS):
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"the probe was not done after {timeout_seconds:.0f} s;"
                    " run it again when nothing else keeps the machine busy"
                )
    except ProcessRaisedException as error:
        cause = str(error).strip().splitlines()[-1]
        raise ClusterError(f"rank {error.error_index} of the probe failed: {cause}") from error
    except ProcessExitedException as error:
        raise ClusterError(f"the probe failed: {error}") from error
