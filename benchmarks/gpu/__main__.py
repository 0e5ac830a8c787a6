"""Measures what half an hour on a GPU can show, part after part.

    python -m benchmarks.gpu [--out DIR] [--tiny] [PART ...]

Each part begins nothing after five minutes, and writes its figures to `PART.json`; a later run of
`plans` and `honesty` goes on with what they have left.
"""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from benchmarks.gpu.task import run_part
from orchestrator.host import gpu_bytes_in_use

# what forecasts read goes first
PARTS = ("ceilings", "plans", "judge", "honesty", "overhead", "profile", "trainer_defaults")
KEPT = Path("benchmarks/results/gpu")  # where figures of real GPUs are kept
TINY = Path("plimsoll-runs/gpu-tiny")


def main() -> int:
    """Runs what is asked for, each part in a process of its own; 2 if one cannot run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], metavar="PART")
    parser.add_argument("--out", type=Path, help=f"folder of results; {KEPT}, or {TINY} if tiny")
    parser.add_argument("--tiny", action="store_true", help="tiny models on a CPU, as a test")
    given = parser.parse_args()
    if not given.tiny and not gpu_bytes_in_use():
        print(
            "no CUDA GPU can be reached here (NVML tells of none);"
            " --tiny runs the program on a CPU, with sizes that say nothing of speed",
            file=sys.stderr,
        )
        return 2
    out: Path = given.out or (TINY if given.tiny else KEPT)
    out.mkdir(parents=True, exist_ok=True)
    ran = []
    for part in given.parts or PARTS:
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
            ran.append(process.submit(run_part, part, out, tiny=given.tiny).result())
    return 0 if all(ran) else 2


if __name__ == "__main__":
    sys.exit(main())
