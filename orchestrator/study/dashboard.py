"""optuna-dashboard on the storage of a study, served by this process.

As a program of its own it would get the storage's URL, with the password, as an argument that every
user of the machine can read.
"""

from __future__ import annotations

from collections.abc import Callable
from socketserver import ThreadingMixIn
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from orchestrator.study.reader import load_study_id
from orchestrator.study.storage import opened_storage, storage_url
from search_spaces.errors import StudyError
from search_spaces.spec.schema import SweepSpec

HOST = "127.0.0.1"


class _Server(ThreadingMixIn, WSGIServer):
    """Answers requests in threads, which end with the process."""

    daemon_threads = True


class _QuietHandler(WSGIRequestHandler):
    """Handler that logs no requests."""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Does nothing."""


def serve_dashboard(spec: SweepSpec, name: str, *, port: int, ready: Callable[[str], None]) -> None:
    """Serves optuna-dashboard to this machine alone, until KeyboardInterrupt.

    Args:
        spec: The study's specification.
        name: The study's name.
        port: Port to listen on.
        ready: Receives the URL of the study's page once the server listens.

    Raises:
        StudyError: If optuna-dashboard is not installed, there is no such study, its storage cannot
            be opened, or the port is in use.
        KeyboardInterrupt: On Ctrl-C, after the server and the storage are closed.
    """
    try:
        from optuna_dashboard import wsgi
    except ImportError:
        raise StudyError(
            "optuna-dashboard is not installed: pip install optuna-dashboard"
        ) from None
    study_id = load_study_id(spec, name)
    with opened_storage(storage_url(spec, name)) as storage:
        try:
            server = make_server(HOST, port, wsgi(storage), _Server, _QuietHandler)
        except OSError as error:
            raise StudyError(f"cannot listen on --port {port}: {error.strerror}") from None
        with server:
            ready(f"http://{HOST}:{port}/dashboard/studies/{study_id}")
            server.serve_forever()
