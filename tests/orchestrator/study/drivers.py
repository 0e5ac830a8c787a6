"""A driver in a process of its own: `python -m tests.orchestrator.study.drivers WHAT ...`.

Arguments: what it does, the storage, the folder of studies, the study's name, a number.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from tests.orchestrator.records import PROPOSED

ROOT = Path(__file__).parents[3]


def driver(*arguments: object, **extra: str) -> subprocess.Popen[str]:
    """Starts a driver with a pipe on its standard output."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.orchestrator.study.drivers", *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **extra},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def _main(what: str, storage: str, folder: str, name: str, number: str) -> None:
    from orchestrator.study.locks import exclusive_driver
    from orchestrator.study.study import Study, check_study
    from search_spaces.errors import StudyError
    from tests.orchestrator.records import make_space
    from tests.orchestrator.study.values import run, study_spec

    spec = study_spec(Path(folder), "random", study={"storage": storage or None})
    say(f"ready {os.getpid()}")
    sys.stdin.readline()  # so that several begin at the same moment
    try:
        if what == "open":
            check_study(spec, name)
        elif what == "sweep":
            with exclusive_driver(spec, name) as lock:
                study = Study(spec, name, make_space(spec), lock=lock)
                for _ in range(int(number)):
                    run(study, 1)
        elif what == "hold":
            check_study(spec, name)
            with exclusive_driver(spec, name) as lock:
                study = Study(spec, name, make_space(spec), lock=lock)
                study.ask(study.propose().plan, PROPOSED)
                say("holding")
                time.sleep(600)
    except StudyError as error:
        say(f"refused: {error}")
        sys.exit(2)
    say("done")


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    _main(*sys.argv[1:])
