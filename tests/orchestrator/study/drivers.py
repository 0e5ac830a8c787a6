"""Drivers in processes of their own, which do what lines of their standard input say."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[3]
BEAT_SECONDS, SILENT_SECONDS = 0.1, 10.0  # of drivers that obey


class Obedient:
    """A driver that obeys `open STORAGE FOLDER NAME`, `write` and `close`, each with an answer."""

    def __init__(self, *before: str) -> None:
        self.process = subprocess.Popen(
            [*before, sys.executable, "-m", "tests.orchestrator.study.drivers"],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

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
    _obey()
