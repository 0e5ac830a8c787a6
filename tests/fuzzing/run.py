"""Runs command lines in this process, in a folder of odd files, and judges how each ends."""

import contextlib
import io
import os
import signal
import socket
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import yaml

from benchmarks.outcomes import measured
from orchestrator.cli.app import main
from orchestrator.cli.exit_codes import ExitCode
from orchestrator.core.reasons import IsBaseline
from orchestrator.core.records import Record
from orchestrator.study.study import Study
from orchestrator.workspace import save_spec
from search_spaces.facts import ClusterFacts
from search_spaces.rules.base import RuleContext
from search_spaces.space import build_space
from search_spaces.specification.load import parse_spec
from search_spaces.specification.schema import GIB
from tests.fuzzing.grammar import COMMANDS, SMALL
from workers.models.facts import model_facts

MOST_SECONDS = 60.0  # of one command, on a loaded machine
MOST_CHARACTERS = 200_000  # of a message
_EXPECTED = {ExitCode.DONE, ExitCode.NOTHING_FOUND, ExitCode.USER_ERROR, ExitCode.TRY_AGAIN}
_TRACEBACK = "Traceback (most recent call last)"


class _TooLong(BaseException):
    """A command that did not end in time."""


@dataclass(frozen=True)
class Ending:
    """Ending of a command.

    Attributes:
        code: Exit code; None if it did not end by itself.
        seconds: Time that it took.
        fault: What is wrong with that; empty if nothing is.
    """

    code: int | None
    seconds: float
    fault: str


class OddFolder:
    """The working folder, with all files that the grammar names, the same for each input."""

    def __init__(self) -> None:
        _make_files()
        self.keep()

    def keep(self) -> None:
        """Takes the folder as it is for what is restored."""
        self._files = {
            path: (path.stat(), path.read_bytes())
            for path in Path().rglob("*")
            if path.is_file() and not path.is_symlink()
        }
        self._names = {*Path().rglob("*")}

    def restore(self) -> None:
        """Undoes what the input before has written."""
        for path in sorted({*Path().rglob("*")} - self._names, reverse=True):
            path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
        for path, (before, content) in self._files.items():
            if not path.exists() or _version(path.stat()) != _version(before):
                path.write_bytes(content)
                os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def _version(found: os.stat_result) -> tuple[int, int]:
    return found.st_size, found.st_mtime_ns


@contextlib.contextmanager
def odd_folder(folder: Path) -> Iterator[OddFolder]:
    """Works in a folder of odd files, and without any network."""
    before, environment = Path.cwd(), dict(os.environ)
    os.chdir(folder)
    os.environ |= {"HF_HUB_OFFLINE": "1", "COLUMNS": "100", "XDG_DATA_HOME": str(folder / "data")}
    try:
        yield OddFolder()
    finally:
        os.chdir(before)
        os.environ.clear()
        os.environ |= environment


def _make_files() -> None:
    small = yaml.safe_dump(SMALL)
    Path("small.yaml").write_text(small)
    for name in ("pipe", "pipe.yaml", "pipe.jsonl"):
        os.mkfifo(name)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")
    Path("folder").mkdir()
    Path("loop").symlink_to("loop")
    Path("dangling").symlink_to("nowhere")
    for name in ("zero.yaml", "zero.jsonl", "zero.json"):
        Path(name).symlink_to("/dev/zero")
    Path("large.yaml").write_text("# " + "x" * (2 << 20))
    Path("empty.yaml").touch()
    Path("binary.yaml").write_bytes(bytes(range(256)))
    Path("plan.json").write_text('{"micro_batch": 1}')
    Path("deep.json").write_text("[" * 100_000)
    Path("half.db").write_bytes(b"SQLite format 3\0" + b"\xff" * 500)
    Path("journal.jsonl").write_text('{"version": 1}\nno json\n')
    _make_study(small)


def _make_study(small: str) -> None:
    """Makes the study `demo`, with three trials."""
    spec = parse_spec(small, source="small.yaml")
    spec = spec.model_copy(update={"study": spec.study.model_copy(update={"name": "demo"})})
    cluster = ClusterFacts(device="cpu", slots=2, memory_limit_bytes=spec.memory_limit_bytes)
    context = RuleContext(spec=spec, model=model_facts(spec.model, spec.train), cluster=cluster)
    space = build_space(context, 2)
    save_spec(spec, "demo")
    study = Study(spec, "demo", space)
    for plan in list(space.candidates)[:3]:
        number = study.ask(plan, IsBaseline())
        study.tell(
            Record(
                number=number,
                plan=plan,
                outcome=measured(
                    20.0 + number,
                    batch=8,
                    tokens=32,
                    half_width=0.01,
                    peak_bytes=GIB // 4,
                    limit_bytes=GIB // 2,
                ),
                reason=IsBaseline(),
                started_at=1.79e9 + number,
                ended_at=1.79e9 + number + 0.5,
                fingerprint=None,
            )
        )


def run_line(folder: OddFolder, words: Sequence[str], specification: bytes | None) -> Ending:
    """Runs a command line; judges its ending.

    Args:
        folder: The working folder.
        words: The words after `plimsoll`.
        specification: Content of a file that is named as the first argument, unless the command
            would begin its work with a valid one; None: the words as they are.
    """
    folder.restore()
    words = list(words)
    if specification is not None and len(words) > 1 and not COMMANDS[words[0]].odd:
        Path("fuzzed.yaml").write_bytes(specification)
        words[1] = "fuzzed.yaml"
    output, errors, began = io.StringIO(), io.StringIO(), time.monotonic()
    code: int | None = None
    with _bounded(), contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        try:
            main(words)
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except _TooLong:
            errors.write(f"not over after {MOST_SECONDS:.0f} s\n{''.join(traceback.format_exc())}")
        except BaseException:  # noqa: BLE001  # nothing may pass
            errors.write(traceback.format_exc())
    return Ending(code, time.monotonic() - began, _fault(code, errors.getvalue(), words))


@contextlib.contextmanager
def _bounded() -> Iterator[None]:
    """Ends a block that lasts too long."""

    def stop(_: int, __: FrameType | None) -> None:
        raise _TooLong

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, MOST_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _fault(code: int | None, said: str, words: Sequence[str]) -> str:
    """Returns what is wrong with an ending; empty if nothing is."""
    if code not in _EXPECTED:
        return f"exit code {code}: {said[-1500:]}"
    if _TRACEBACK in said and not any(_TRACEBACK in word for word in words):
        return f"a traceback: {said[-1500:]}"
    if code == ExitCode.USER_ERROR and not said.strip():
        return "refused without a word"
    if len(said) > MOST_CHARACTERS:
        return f"a message of {len(said):,} characters"
    return ""
