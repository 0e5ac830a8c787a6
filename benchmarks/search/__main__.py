"""Races samplers over complete surfaces.

    python -m benchmarks.search DIR [--json] [--seeds N] [--least N]

DIR holds tables in the columns that `benchmarks.published` reads; rows that share an id in the
column `ranking_sets` are one surface. More columns are more knobs.
"""

from __future__ import annotations

import sys

from benchmarks.published.product import forecaster_without
from benchmarks.search.command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], forecaster_without))
