"""The command line of `python -m benchmarks.search`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.output import write
from benchmarks.published.forecaster import ForecasterWithout
from benchmarks.search.races import run
from benchmarks.search.rivals import RIVALS
from benchmarks.search.surfaces import surfaces_in
from search_spaces.errors import UserError

_SHOWN = ("trials_to_5pct", "trials_to_2pct", "regret_at_5", "regret_at_10", "oom_trials")


def main(arguments: Sequence[str], without: ForecasterWithout) -> int:
    """Races all rivals over a directory; the exit status, 2 for what a user caused."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.search", description="Races samplers over complete surfaces."
    )
    parser.add_argument("folder", type=Path, metavar="DIR", help="folder of tables (.csv)")
    parser.add_argument("--json", action="store_true", help="print one object of JSON")
    parser.add_argument("--seeds", type=int, default=50, help="races of each rival")
    parser.add_argument("--least", type=int, default=9, help="candidates that a surface must have")
    parser.add_argument("--out", type=Path, help="where to keep the figures")
    options = parser.parse_args(arguments)
    try:
        surfaces = surfaces_in(options.folder, without, least=options.least)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    found = run(surfaces, RIVALS, options.seeds)
    write(found, options.out)
    if options.json:
        print(json.dumps(found, indent=2, allow_nan=False))
    else:
        _show(found)
    return 0


def _show(found: dict[str, Any]) -> None:
    table = Table("surface", "candidates", "sampler", *_SHOWN)
    everywhere = {"all": {"candidates": "", "samplers": found["overall"]}}
    for name, surface in (found["surfaces"] | everywhere).items():
        for sampler, told in surface["samplers"].items():
            cells = (f"{told[key]:.3g}" for key in _SHOWN)
            table.add_row(name, str(surface["candidates"]), sampler, *cells)
    Console().print(table)
