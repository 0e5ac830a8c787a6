"""Races samplers over complete surfaces.

    python -m benchmarks.search DIR [--out FILE] [--seeds N] [--samplers A B] [--wrong]
        [--peaks SHARE ...]

DIR holds tables in the columns that `benchmarks.published` reads; rows that share an id in the
column `ranking_sets` are one surface, or a whole table that has none. Columns named as a plan's
knobs are knobs (`benchmarks.search.columns`). Where a specification lies beside a table
(`FILE.yaml` of `FILE.csv`), forecasts are made from its plans.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.output import command_line, write
from benchmarks.published.forecaster import ForecasterWithout
from benchmarks.published.product import forecaster_without
from benchmarks.search.competitors.known import COMPETITORS, WRONG
from benchmarks.search.races import AFTER
from benchmarks.search.run import run
from benchmarks.search.surfaces import surfaces_in, within
from search_spaces.errors import UserError

_SHOWN = {  # figures, and what they are called in the table
    "trials_to_5pct": "to 5 %",
    "trials_to_2pct": "to 2 %",
    "seconds_to_2pct": "seconds",
    **{f"regret_at_{trials}": f"after {trials}" for trials in AFTER},
    "oom_trials": "out of memory",
}


def main(arguments: Sequence[str], without: ForecasterWithout) -> int:
    """Races competitors over a directory; the exit status, 2 for what a user caused."""
    options = _parser().parse_args(arguments)
    try:
        surfaces = surfaces_in(options.folder, without, least=options.least)
        if not surfaces:
            raise UserError(f"{options.folder} has no rows that form a surface")
        if options.peaks:
            surfaces = tuple(within(one, peak) for one in surfaces for peak in options.peaks)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    competitors = (*options.samplers, *(WRONG if options.wrong else ()))
    found = run(surfaces, tuple(dict.fromkeys(competitors)), options.seeds, options.jobs)
    write(found, options.out)
    _show(found)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = command_line(__doc__)
    add = parser.add_argument
    add("folder", type=Path, metavar="DIR", help="folder of tables (.csv), or one table")
    add("--seeds", type=int, default=50, help="races of each sampler (50)")
    known = [*COMPETITORS, *WRONG]
    add("--samplers", nargs="+", choices=known, default=[*COMPETITORS], help="which; else all")
    add("--wrong", action="store_true", help="Plimsoll with spoilt forecasts too")
    add("--least", type=int, default=9, help="candidates that a surface must have (9)")
    cores = len(os.sched_getaffinity(0))
    add("--jobs", type=int, default=cores, help="processes (one for each core)")
    stated = "stated peaks, as quantiles of a surface's measured ones, in place of its limit"
    add("--peaks", type=float, nargs="+", default=[], metavar="SHARE", help=stated)
    return parser


def _show(found: dict[str, Any]) -> None:
    for name, samplers in (found["surfaces"] | {"all surfaces": found["overall"]}).items():
        print(f"{name}\n{'':26}", *(f"{words:>14}" for words in _SHOWN.values()))
        for sampler, told in samplers.items():
            cells = (
                f"{100 * told[key]:.1f} %" if key.startswith("regret") else f"{told[key]:.6g}"
                for key in _SHOWN
            )
            print(f"{sampler:26}", *(f"{cell:>14}" for cell in cells))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], forecaster_without))
