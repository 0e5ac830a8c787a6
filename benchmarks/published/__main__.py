"""Judges the forecast on training measurements that others published.

    python -m benchmarks.published DIR [--json]

DIR holds tables in the columns of `cells.COLUMNS`. Each source (a file) is forecast with
coefficients that were fitted without it.
"""

from __future__ import annotations

import sys

from benchmarks.published.command import main
from benchmarks.published.product import forecaster_without

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], forecaster_without))
