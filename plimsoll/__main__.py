"""Starts the command line, unless another distribution has overwritten part of it."""

import gc
import sys
from typing import NoReturn

from plimsoll.installed import collisions

EXIT_USER_ERROR = 2
# Imported modules are never freed. By default a collection each 700 new objects would scan them
# over and over, which takes a seventh of the time of `plimsoll plan`.
OBJECTS_BEFORE_COLLECTION = 100_000


def main() -> NoReturn:
    """Checks the installed distributions, then runs the command line and exits."""
    if sys.argv[1:2] != ["trial"]:  # it trains in this process, where the user's threshold applies
        gc.set_threshold(OBJECTS_BEFORE_COLLECTION)
    try:
        if problem := collisions():
            sys.stderr.write(f"{problem}\n")
            sys.exit(EXIT_USER_ERROR)
        from orchestrator.cli import main as run  # may be another distribution's until checked
    except KeyboardInterrupt:
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
