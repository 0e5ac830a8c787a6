"""Drivers in processes of their own: `python -m tests.orchestrator.study.drivers WHAT ...`.

Arguments: what it does, the storage, the folder of studies, the study's name, a number. A driver of
kind `obey` does what the lines of its standard input say, and answers each with a line.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.orchestrator.records import PROPOSED

ROOT = Path(__file__).parents[3]
BEAT_SECONDS, SILENT_SECONDS = 0.1, 10.0  # of drivers that obey


def driver(*arguments: object, before: Sequence[str] = (), **extra: str) -> subprocess.Popen[str]:
    """Starts a driver with pipes on its standard input and output.

    Args:
        arguments: See above.
        before: A command that runs it.
        extra: Variables of its environment.
    """
    module = ["-m", "tests.orchestrator.study.drivers"]
    return subprocess.Popen(
        [*before, sys.executable, *module, *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **extra},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


class Obedient:
    """A driver that obeys: `open STORAGE FOLDER NAME`, `write`, `close`."""

    def __init__(self, *before: str) -> None:
        self.process = driver("obey", "", "", "", 0, before=before)

    def send(self, *words: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()

    def answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def does(self, *words: object) -> str:
        """Returns its answer to a command."""
        self.send(*words)
        return self.answer()

    def stop(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)


@contextmanager
def obedient(*before: str) -> Iterator[Obedient]:
    """A driver, started by a command if one is given, that is gone after the block."""
    one = Obedient(*before)
    try:
        yield one
    finally:
        one.process.kill()
        one.process.communicate()


def _main(what: str, storage: str, folder: str, name: str, number: str) -> None:
    from orchestrator.study.locks import exclusive_driver
    from orchestrator.study.study import Study, check_study
    from search_spaces.errors import StudyError
    from tests.orchestrator.records import make_space
    from tests.orchestrator.study.values import run, study_spec

    if what == "obey":
        _obey()
        return
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


def _obey() -> None:
    from orchestrator.cli.exit_codes import exit_code_after
    from search_spaces.errors import StudyError

    with ExitStack() as held:
        sweep = None
        for line in sys.stdin:
            words = line.split()
            try:
                if words[0] == "open":
                    sweep = held.enter_context(_opened(*words[1:]))
                elif words[0] == "write":
                    assert sweep is not None
                    sweep()
                elif words[0] == "close":
                    held.close()
                say("done")
            except StudyError as error:
                say(f"{int(exit_code_after(error))}: {error}")


@contextmanager
def _opened(
    storage: str, folder: str, name: str, wait_minutes: str = "10"
) -> Iterator[Callable[[], object]]:
    from orchestrator.study.locks import Lease, exclusive_driver
    from orchestrator.study.study import Study
    from tests.orchestrator.records import make_space
    from tests.orchestrator.study.values import run, study_spec

    study = {"storage": None if storage == "-" else storage, "wait_minutes": float(wait_minutes)}
    spec = study_spec(Path(folder), "random", study=study)
    lease = Lease(beat_seconds=BEAT_SECONDS, silent_seconds=SILENT_SECONDS)
    with exclusive_driver(spec, name, lease=lease) as lock:
        sweep = Study(spec, name, make_space(spec), lock=lock)
        yield lambda: run(sweep, 1)


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    _main(*sys.argv[1:])
