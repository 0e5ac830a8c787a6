"""Races samplers over complete surfaces.

    python -m benchmarks.search DIR [--json] [--seeds N] [--samplers A,B] [--wrong]

DIR holds tables in the columns that `benchmarks.published` reads; rows that share an id in the
column `ranking_sets` are one surface, or a whole table that has none. Columns named as a plan's
knobs are knobs (`benchmarks.search.columns`). Where a specification lies beside a table
(`FILE.yaml` of `FILE.csv`), forecasts are made from its plans.
"""

from __future__ import annotations

import sys

from benchmarks.published.product import forecaster_without
from benchmarks.search.command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], forecaster_without))
