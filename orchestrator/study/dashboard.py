"""optuna-dashboard on the storage of a study, in this process.

It is not started as a program of its own: that would be given the storage's address, with its
password, as an argument that every user of the machine can read.
"""

from __future__ import annotations

from collections.abc import Callable
from socketserver import ThreadingMixIn
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from orchestrator.study.reader import load_study_id
from orchestrator.study.storage import brief_storage, storage_url
from search_spaces.errors import StudyError
from search_spaces.spec.schema import SweepSpec

HOST = "127.0.0.1"


class _Server(ThreadingMixIn, WSGIServer):
    """Answers the requests of a page side by side; those under way end with the process."""

    daemon_threads = True


class _QuietHandler(WSGIRequestHandler):
    """Writes no line for each request."""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Writes nothing."""


def serve_dashboard(spec: SweepSpec, name: str, *, port: int, ready: Callable[[str], None]) -> None:
    """Serves optuna-dashboard to this machine alone, until KeyboardInterrupt.

    Args:
        spec: The study's specification.
        name: The study's name.
        port: To listen on.
        ready: Is told the address of the study's page when the server listens.

    Raises:
        StudyError: If it is not installed, there is no such study, its storage cannot be opened,
            or the port is taken.
        KeyboardInterrupt: When it is ended; nothing is left open then.
    """
    try:
        from optuna_dashboard import wsgi
    except ImportError:
        raise StudyError(
            "optuna-dashboard is not installed: pip install optuna-dashboard"
        ) from None
    number = load_study_id(spec, name)
    with brief_storage(storage_url(spec, name)) as storage:
        try:
            server = make_server(HOST, port, wsgi(storage), _Server, _QuietHandler)
        except OSError as error:
            raise StudyError(f"--port {port} cannot be listened on: {error.strerror}") from None
        with server:
            ready(f"http://{HOST}:{port}/dashboard/studies/{number}")
            server.serve_forever()
