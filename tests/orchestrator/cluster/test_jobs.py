"""The job client: its logging, and servers that do not answer."""

import contextlib
import http.server
import json
import threading
from collections.abc import Iterator, Mapping

import pytest
import ray

from orchestrator.cluster import jobs
from search_spaces.errors import ClusterError


@contextlib.contextmanager
def silent_server(answers: Mapping[str, str]) -> Iterator[str]:
    """Yields the address of a server that answers some paths; nobody may wait for others."""
    over = threading.Event()
    waited: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = answers.get(self.path)
            if body is None:
                if not over.wait(600):
                    waited.append(self.path)
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

        def do_POST(self) -> None:
            self.do_GET()

        def log_message(self, *_: object) -> None:
            """Logs nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            over.set()
            server.shutdown()
    assert waited == []


VERSION = json.dumps({"version": "4", "ray_version": ray.__version__, "ray_commit": ""})


@pytest.fixture
def no_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names no server in the environment, and forgets what a client writes there."""
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    for name in ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


@pytest.mark.usefixtures("no_address")
@pytest.mark.parametrize("answers", [{}, {"/api/version": VERSION}])
def test_a_server_that_never_answers_is_given_up(answers: dict[str, str]) -> None:
    with silent_server(answers) as address, pytest.raises(ClusterError) as caught:
        jobs.JobServer(address, patience_seconds=0.5).jobs()

    assert str(caught.value).startswith(f"{address} has not answered for ")
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("no_address")
def test_a_log_that_falls_silent_is_asked_about(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line that is cut without a word: the log never goes on, and the job has ended."""
    monkeypatch.setattr(jobs, "_SILENT_SECONDS", 0.3)
    ended = {
        "type": "SUBMISSION",
        "entrypoint": "true",
        "submission_id": "ends",
        "status": "SUCCEEDED",
    }
    answers = {
        "/api/version": VERSION,
        "/api/jobs/ends": json.dumps(ended),
        "/api/jobs/ends/logs": json.dumps({"logs": "all of it\n"}),
    }
    pieces: list[str] = []
    with silent_server(answers) as address:
        job = jobs.JobServer(address, patience_seconds=5).follow("ends", pieces.append)

    assert job is not None
    assert job.status == "succeeded"
    assert pieces == ["all of it\n"]
