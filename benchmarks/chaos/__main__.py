"""Sweeps under injected faults: `python -m benchmarks.chaos [--sweeps N] [--out FILE]`.

Each sweep is `plimsoll tune` on this machine's CPU with two ranks. Faults strike at random moments
of random trials; when a driver was ended, the same command is run again, until the sweep is over.
Then its study is held against what the workers themselves wrote down. The same seed draws the same
faults at the same moments, and what they meet differs with the machine's speed. A campaign that
was stopped goes on from its file.
"""

import argparse
import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.chaos.faults import FAULTS
from benchmarks.chaos.plants import PLANTS
from benchmarks.chaos.settings import SETTINGS
from benchmarks.chaos.sweep import Report, planned, run
from benchmarks.output import command_line, write


def main() -> int:
    """Runs the campaign; 1 if anything was wrong."""
    parser = command_line(__doc__)
    parser.add_argument("--sweeps", type=int, default=60)
    parser.add_argument("--faults", type=int, default=7, help="of each sweep")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kinds", nargs="*", default=sorted(FAULTS), choices=sorted(FAULTS))
    parser.add_argument(
        "--plant", nargs="*", default=[], choices=sorted(PLANTS), help="bugs of ours"
    )
    asked = parser.parse_args()
    reports = _kept(asked.out)
    wanted = range(asked.seed, asked.seed + asked.sweeps)
    for seed in sorted(set(wanted) - {report.seed for report in reports}):
        reports.append(_one(seed, asked))
        _say(reports[-1])
        write(_summary(reports), asked.out)
    print(json.dumps({k: v for k, v in _summary(reports).items() if k != "each"}, indent=1))
    return int(not all(report.clean for report in reports))


def _kept(file: Path | None) -> list[Report]:
    if file is None or not file.exists():
        return []
    return [Report(**report) for report in json.loads(file.read_text("utf-8"))["each"]]


def _one(seed: int, asked: argparse.Namespace) -> Report:
    """Runs the sweep of a seed, in the setting that the seed picks of those this user may have."""
    usable = [name for name in SETTINGS if name != "disk" or os.geteuid() == 0]
    kept_in = usable[seed % len(usable)]
    able = [kind for kind in asked.kinds if kept_in in FAULTS[kind].needs]
    # not a context: what a sweep leaves behind is looked at, also by a person
    folder = Path(tempfile.mkdtemp(prefix=f"{seed}-"))
    report = run(folder, seed, planned(seed, able, asked.faults), kept_in, asked.plant)
    if not report.clean:
        print(f"kept: {folder}", file=sys.stderr)
    return report


def _say(report: Report) -> None:
    faults = ", ".join(report.faults)
    state = "clean" if report.clean else f"NOT CLEAN {json.dumps(asdict(report))}"
    print(
        f"seed {report.seed}: {report.seconds:.0f} s, {report.drivers} drivers; {faults}: {state}",
        flush=True,
    )


def _summary(reports: Sequence[Report]) -> dict[str, object]:
    def told(name: str) -> int:
        return sum(len(report.verdict.get(name, ())) for report in reports)

    return {
        "sweeps": len(reports),
        "faults": dict(sorted(Counter(k for r in reports for k in r.faults).items())),
        "missed": dict(sorted(Counter(k for r in reports for k in r.missed).items())),
        "hangs": sum(report.hung for report in reports),
        "leaked": sum(len(report.leaked) for report in reports),
        **{name: told(name) for name in ("lost", "duplicated", "invented", "unexplained")},
        "troubles": sum(len(report.troubles) for report in reports),
        "seeds": [report.seed for report in reports],
        "each": [asdict(report) for report in reports],
    }


if __name__ == "__main__":
    sys.exit(main())
