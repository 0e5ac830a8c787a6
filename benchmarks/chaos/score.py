"""Judges the campaign's judge: how many planted bugs it reports, in made-up histories.

    python -m benchmarks.chaos.score --histories 1000 --out benchmarks/results/chaos_judge.json

Faults strike as often as in the campaign whose results are kept. A sound history that is reported
is an error of the judge's too.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from benchmarks.chaos.history import score
from benchmarks.output import write

CAMPAIGN = Path(__file__).parents[1] / "results" / "chaos.json"
FAULTS = 7  # of each sweep, as in the campaign


def main() -> None:
    """Scores the judge, and writes the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--histories", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=None)
    asked = parser.parse_args()
    often = json.loads(CAMPAIGN.read_text("utf-8"))["faults"]
    found = score(often, asked.histories, FAULTS, asked.seed)
    print(json.dumps(found))
    write(found, asked.out)


if __name__ == "__main__":
    main()
