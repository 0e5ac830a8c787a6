"""Judges the forecast on training measurements that others published.

    python -m benchmarks.published DIR [--out FILE]

DIR holds tables in the columns of `cells.COLUMNS`. Each source (a file) is forecast with
coefficients that were fitted without it.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.output import write
from benchmarks.published.baseline import ConstantMfu
from benchmarks.published.evaluate import evaluate
from benchmarks.published.forecaster import ForecasterWithout
from benchmarks.published.product import forecaster_without
from benchmarks.published.reader import read
from benchmarks.published.report import report
from search_spaces.errors import UserError


def main(arguments: Sequence[str], without: ForecasterWithout) -> int:
    """Judges a forecaster on the tables of a folder; the exit status, 2 for what a user caused."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, metavar="DIR", help="folder of tables (.csv)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="where to keep the figures")
    options = parser.parse_args(arguments)
    try:
        tables = read(options.folder)
        judged = evaluate(tables, without)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    figures = report(tables, judged, evaluate(tables, lambda _: ConstantMfu()))
    write(figures, options.out)
    for label, of in (("forecast", figures), ("constant 40 % MFU", figures["baseline"])):
        print(label)
        for name, value in of["overall"].items():
            print(f"  {name:28} {'-' if value is None else f'{value:.4g}'}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], forecaster_without))
