"""Runs code of models in processes of their own, with a time limit.

A driver only needs an answer, and the code may hang, end its process, or change anything in it.
What the code prints goes to stderr. The processes are forks of one that has imported torch and
transformers, which takes seconds; it ends with the process that started it, or when nothing has
been asked of it for a while.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, final

from search_spaces.errors import DataError, MachineError, ModelError, UserError

Task = Callable[[Any], bytes]
_STDIN, _STDOUT, _STDERR = range(3)
_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]);"
    " from workers.models.isolation import serve; serve()"
)
IMPORTED = ["workers.models.load", "workers.tracing.trace", "transformers.modeling_utils"]
IDLE_SECONDS = 60.0
_ANSWER, _ERROR = "answer.json", "error.json"
_ERRORS = {error.__name__: error for error in (DataError, ModelError)}
_START_SECONDS = 300.0  # in which the process that forks has its imports
_LEAST_SHARE = 0.2  # of a core, which a machine must give a model's code
_LATE = "late"  # in place of an exit status
_POLL_SECONDS = 0.02
_CHUNK_BYTES = 2**16


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
        self._door: socket.socket | None = None

    def run(self, order: bytes, seconds: float) -> str:
        """Runs an order; returns the exit status of its process, or that it took too long.

        Raises:
            ModelError: If its process cannot be made.
            MachineError: If nothing is heard of it for that long.
        """
        until = time.monotonic() + seconds
        for _ in range(2):  # the first process may just have ended for want of orders
            mine, theirs = socket.socketpair()
            with mine:
                with theirs:
                    self._hand(theirs)
                try:
                    mine.sendall(order)
                    status = _received(mine, until)
                except TimeoutError:
                    self._kill()  # whatever it runs hears that we are gone, and is killed
                    raise MachineError(
                        f"the process for the model's code did not answer within {seconds:.0f} s:"
                        " the machine is too busy, or hangs; run the same command again when it is"
                        " not"
                    ) from None
                except OSError:
                    continue
                if status:
                    return status
        raise ModelError(
            "no process could be started for the model's code; what it printed says why"
        )

    def close(self) -> None:
        """Lets the process end."""
        if self._door is not None:
            self._door.close()
            self._door = None

    def _kill(self) -> None:
        self.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _hand(self, channel: socket.socket) -> None:
        with self._lock:
            for _ in range(2):
                with contextlib.suppress(OSError):
                    handles = (channel.fileno(), _STDERR)
                    socket.send_fds(self._open_door(), [b"\n"], handles)
                    return
                self.close()

    def _open_door(self) -> socket.socket:
        alive = self._process is not None and self._process.poll() is None
        if self._door is not None and alive and self._owner == os.getpid():
            return self._door
        self.close()
        self._door, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-c", _START, json.dumps(sys.path), str(theirs.fileno())),
                    *(str(IDLE_SECONDS), *IMPORTED),
                ],
                env={"TRANSFORMERS_VERBOSITY": "error", **os.environ},  # a driver wants an answer
                stdin=subprocess.DEVNULL,
                stdout=_STDERR,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        self._owner = os.getpid()
        return self._door


def _received(channel: socket.socket, until: float) -> str:
    """Returns all that is sent until the other side closes."""
    received = bytearray()
    while True:
        channel.settimeout(max(until - time.monotonic(), 1e-3))
        part = channel.recv(_CHUNK_BYTES)
        if not part:
            return received.decode()
        received += part


_forks = _Forks()
atexit.register(_forks.close)


def serve() -> None:
    """Forks for each order, until nobody can give any more."""
    door_handle, idle_seconds, *modules = sys.argv[2:]
    for module in modules:
        importlib.import_module(module)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # forks leave nothing to wait for
    with socket.socket(fileno=int(door_handle)) as door:
        door.settimeout(float(idle_seconds))
        while True:
            try:
                sent, handles, _, _ = socket.recv_fds(door, 1, 2)
            except TimeoutError:
                return
            if not sent:
                return
            if os.fork() == 0:
                door.close()
                _supervise(*handles)
            for handle in handles:
                os.close(handle)


def _supervise(channel_handle: int, stderr: int) -> NoReturn:
    """Runs one order in a child; kills all of it if whoever gave the order is gone."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with socket.socket(fileno=channel_handle) as channel:
        order = bytearray()
        while not order.endswith(b"\n"):
            part = channel.recv(_CHUNK_BYTES)
            if not part:
                os._exit(0)
            order += part
        seconds = json.loads(order)["seconds"]
        started, is_late = time.monotonic(), False
        child = os.fork()
        if child == 0:
            channel.close()
            os.setsid()
            _obey(json.loads(order), stderr)
        ended = os.WEXITED | os.WNOHANG | os.WNOWAIT
        while os.waitid(os.P_PID, child, ended) is None:
            is_late = time.monotonic() - started - _seconds_without_core(child) > seconds
            if is_late or select.select([channel], [], [], _POLL_SECONDS)[0]:
                os.kill(child, signal.SIGKILL)
                break
        with contextlib.suppress(ProcessLookupError):  # it has not come to be a group's first
            os.killpg(child, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        with contextlib.suppress(OSError):
            channel.sendall((_LATE if is_late else str(status)).encode())
    os._exit(0)


def _seconds_without_core(pid: int) -> float:
    try:
        _, waited_nanoseconds, _ = Path(f"/proc/{pid}/schedstat").read_text().split()
    except (OSError, ValueError):
        return 0.0
    return int(waited_nanoseconds) / 1e9


def _obey(order: dict[str, Any], stderr: int) -> NoReturn:
    """Does what an order says, in the process that may run a model's code."""
    status = 1
    try:
        os.dup2(os.open(os.devnull, os.O_RDONLY), _STDIN)
        os.dup2(stderr, _STDOUT)
        os.dup2(stderr, _STDERR)
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
    module, _, function = order["task"].partition(":")
    task: Task = getattr(importlib.import_module(module), function)
    try:
        answer = task(order["request"])
    except UserError as error:
        error_kind = type(error).__name__
        (folder / _ERROR).write_text(json.dumps([error_kind, str(error)]), "utf-8")
        return
    (folder / _ANSWER).write_bytes(answer)
