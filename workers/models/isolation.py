"""Runs code of models in processes of their own, with a time limit.

A driver only needs an answer, and the code may hang, end its process, or change anything in it.
What the code prints goes to stderr. The processes are forks of one that has imported torch and
transformers, which takes seconds; it ends with the process that started it, or when nothing has
been asked of it for a while.
"""

import atexit
import contextlib
import gc
import importlib
import json
import os
import pkgutil
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, NoReturn, final

import psutil

from search_spaces.errors import DataError, MachineError, ModelError, UserError

Task = Callable[[Any], bytes]
_STDIN, _STDOUT, _STDERR = range(3)
_CODE = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]);"
    " from workers.models.isolation import serve; serve()"
)
_START = (sys.executable, "-P", "-c", _CODE)  # not even `json` comes from the current directory
IMPORTED = ["workers.models.load", "workers.tracing.trace", "transformers.modeling_utils"]
IDLE_SECONDS = 60.0
_ANSWER, _ERROR = "answer.json", "error.json"
_ERRORS = {error.__name__: error for error in (DataError, ModelError)}
_START_SECONDS = 300.0  # in which the process that forks has its imports
_LEAST_SHARE = 0.2  # of a core, which a machine must give a model's code
_LATE = "late"  # in place of an exit status
_POLL_SECONDS = 0.02


def run_apart(task: Task, request: Any, seconds: float) -> bytes:
    """Runs a task in a new process, with this one's import path, environment and directory.

    Args:
        task: A function of a module of Plimsoll, which returns JSON.
        request: Its argument, as JSON values.
        seconds: Time limit, in which waiting for a free core does not count; then the process and
            all that it started are killed.

    Returns:
        The result.

    Raises:
        UserError: As the task does.
        ModelError: If the process takes too long, or ends without an answer.
        MachineError: If the machine is too busy to run it.
    """
    with tempfile.TemporaryDirectory(prefix="plimsoll-") as folder:
        order = {
            "task": f"{task.__module__}:{task.__name__}",
            "request": request,
            "folder": folder,
            "path": sys.path,
            "environment": dict(os.environ),
            "current": str(Path.cwd()),
            "seconds": seconds,
        }
        patience = _START_SECONDS + seconds / _LEAST_SHARE
        status = _forks.run(json.dumps(order).encode() + b"\n", patience)
        if status == _LATE:
            raise ModelError(f"the model's code took longer than {seconds:.0f} s and was ended")
        return _answer(Path(folder), status)


def _answer(folder: Path, status: str) -> bytes:
    with contextlib.suppress(FileNotFoundError):
        return (folder / _ANSWER).read_bytes()
    try:
        kind, message = json.loads((folder / _ERROR).read_text("utf-8"))
    except FileNotFoundError:
        raise ModelError(
            f"the model's code ended the process that ran it, with status {status}"
        ) from None
    raise _ERRORS.get(kind, ModelError)(message)


@final
class _Forks:
    """Process that forks for each order; it is started by the first one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner = 0  # process that started it
        self._process: subprocess.Popen[bytes] | None = None
        self._is_cancelled = False

    def run(self, order: bytes, seconds: float) -> str:
        """Runs an order; returns the exit status of its process, or that it took too long.

        Raises:
            ModelError: If its process cannot be made.
            MachineError: If nothing is heard of it for that long.
        """
        with self._lock:
            self._is_cancelled = False
            for _ in range(2):  # the first process may just have ended for want of orders
                status = b""
                try:
                    status = self._status_of(order, seconds)
                finally:
                    if not status:  # nobody reads what it would still say
                        self.close()
                if status:
                    return status.strip().decode()
                if self._is_cancelled:
                    break
        raise ModelError(
            "no process could be started for the model's code; what it printed says why"
        )

    def _status_of(self, order: bytes, seconds: float) -> bytes:
        """Returns the answer to an order; empty if the process has ended."""
        orders, statuses = self._pipes()
        with contextlib.suppress(BrokenPipeError):
            orders.write(order)
            orders.flush()
            if select.select([statuses], [], [], seconds)[0]:
                return statuses.readline()
            raise MachineError(
                f"the process for the model's code did not answer within {seconds:.0f} s: the"
                " machine is too busy, or hangs; run the same command again when it is not"
            )
        return b""

    def close(self) -> None:
        """Ends the process, and all that it runs."""
        if self._process is not None and self._kill():
            self._process.communicate()

    def cancel(self) -> None:
        """Ends a task of another thread, whose `run_apart` then raises `ModelError`."""
        self._is_cancelled = True
        self._kill()

    def _kill(self) -> bool:
        if self._process is None or self._owner != os.getpid():
            return False
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in psutil.Process(self._process.pid).children(recursive=True):
                child.kill()
        self._process.kill()
        return True

    def _pipes(self) -> tuple[IO[bytes], IO[bytes]]:
        ended = self._process is None or self._process.poll() is not None
        if ended or self._owner != os.getpid():
            if self._process is not None:
                for pipe in filter(None, (self._process.stdin, self._process.stdout)):
                    with contextlib.suppress(OSError):  # what its end left unsent
                        pipe.close()
            self._process = subprocess.Popen(
                [*_START, json.dumps(sys.path), str(IDLE_SECONDS), *IMPORTED],
                env={"TRANSFORMERS_VERBOSITY": "error", **os.environ},  # a driver wants an answer
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,
            )
            self._owner = os.getpid()
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        return self._process.stdin, self._process.stdout


_forks = _Forks()
atexit.register(_forks.close)
cancel_apart = _forks.cancel


def serve() -> None:
    """Forks for each order from stdin, until nobody can give any more."""
    idle_seconds, *modules = sys.argv[2:]
    statuses = os.dup(_STDOUT)
    os.dup2(_STDERR, _STDOUT)
    gc.disable()
    for module in modules:
        importlib.import_module(module)
    gc.freeze()  # forks would copy the pages of all that a collection traverses
    gc.enable()
    folder = None
    while select.select([_STDIN], [], [], float(idle_seconds))[0]:
        order = sys.stdin.readline()
        if not order:
            if folder:  # a driver that was killed could not remove it
                shutil.rmtree(folder, ignore_errors=True)
            return
        asked = json.loads(order)
        folder = asked["folder"]
        status = _status_of(asked, statuses)
        with contextlib.suppress(BrokenPipeError):
            os.write(statuses, f"{status}\n".encode())


def _status_of(order: dict[str, Any], statuses: int) -> str:
    """Runs one order in a child; kills all of it if it is late or whoever gave it is gone."""
    started, is_late = time.monotonic(), False
    child = os.fork()
    if child == 0:
        os.close(statuses)
        os.setsid()
        _obey(order)
    ended = os.WEXITED | os.WNOHANG | os.WNOWAIT
    while os.waitid(os.P_PID, child, ended) is None:
        spent = time.monotonic() - started - _seconds_without_core(child)
        is_late = spent > order["seconds"]
        if is_late or select.select([_STDIN], [], [], _POLL_SECONDS)[0]:
            os.kill(child, signal.SIGKILL)
            break
    with contextlib.suppress(ProcessLookupError):  # it has not come to be a group's first
        os.killpg(child, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return _LATE if is_late else str(status)


def _seconds_without_core(pid: int) -> float:
    try:
        _, waited_nanoseconds, _ = Path(f"/proc/{pid}/schedstat").read_text().split()
    except (OSError, ValueError):
        return 0.0
    return int(waited_nanoseconds) / 1e9


def _obey(order: dict[str, Any]) -> NoReturn:
    """Does what an order says, in the process that may run a model's code."""
    status = 1
    try:
        os.dup2(os.open(os.devnull, os.O_RDONLY), _STDIN)
        os.chdir(order["current"])
        os.environ.clear()
        os.environ.update(order["environment"])
        sys.path[:] = order["path"]
        _run(order, Path(order["folder"]))
        status = 0
    except BaseException:  # noqa: BLE001 the process ends here, whatever the code raises
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _run(order: dict[str, Any], folder: Path) -> None:
    task: Task = pkgutil.resolve_name(order["task"])
    try:
        answer = task(order["request"])
    except UserError as error:
        error_kind = type(error).__name__
        (folder / _ERROR).write_text(json.dumps([error_kind, str(error)]), "utf-8")
        return
    (folder / _ANSWER).write_bytes(answer)
