"""Starts the command line, unless another distribution has overwritten a part of it."""

from __future__ import annotations

import gc
import sys
from typing import NoReturn

from plimsoll.installed import collisions, unsupported_versions

EXIT_USER_ERROR = 2
# What a command imports stays: a collection each 700 new objects, as by default, looks through it
# again and again, which takes a seventh of `plimsoll plan`.
OBJECTS_BEFORE_COLLECTION = 100_000


def main() -> NoReturn:
    """Checks the installed distributions, then runs the command line and exits."""
    if sys.argv[1:2] != ["trial"]:  # which trains in this process, as a script of the user's does
        gc.set_threshold(OBJECTS_BEFORE_COLLECTION)
    try:
        if told := collisions():
            sys.stderr.write(f"{told}\n")
            sys.exit(EXIT_USER_ERROR)
        if told := unsupported_versions():
            sys.stderr.write(f"{told}\n")
        from orchestrator.cli import main as run  # another distribution's until it was checked
    except KeyboardInterrupt:
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
