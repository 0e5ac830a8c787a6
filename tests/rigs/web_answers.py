"""Web servers that answer as MLflow does not: errors, a page to log in, late."""

import contextlib
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal

Answer = Literal["error", "login", "late"]
_LATE_SECONDS = 8.0
_FREED_SECONDS = 30.0  # in which the port of a server is free that was killed
_PAGES = {
    "error": (500, "text/plain", b"Internal Server Error"),
    "login": (200, "text/html", b"<!doctype html><title>Log in</title><form><input></form>"),
    "late": (503, "text/plain", b"upstream timed out"),
}


def _listening(port: int, handler: type[BaseHTTPRequestHandler]) -> ThreadingHTTPServer:
    """Listens as soon as who did before has ended."""
    until = time.monotonic() + _FREED_SECONDS
    while True:
        try:
            return ThreadingHTTPServer(("127.0.0.1", port), handler)
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)


@contextlib.contextmanager
def answering(port: int, answer: Answer) -> Iterator[None]:
    """Serves this answer to whatever is asked on the loopback's port, for the while."""
    status, kind, page = _PAGES[answer]

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if answer == "late":
                time.sleep(_LATE_SECONDS)
            with contextlib.suppress(OSError):  # who asked has not waited
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(page)))
                self.end_headers()
                self.wfile.write(page)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _answer  # noqa: N815 - their names

        def log_message(self, *_: object) -> None:
            """Says nothing."""

    server = _listening(port, Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
