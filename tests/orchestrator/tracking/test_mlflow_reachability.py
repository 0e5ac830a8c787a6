"""The probe of a tracking server: through MLflow's own client, so with all that it sends.

The server here is a small one that looks at what it is sent; MLflow's own with passwords is
started by the thorough test.
"""

import base64
import http.server
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest

from orchestrator.cli.exit_codes import ExitCode, exit_code_after
from orchestrator.tracking.mlflow_reachability import check_tracking
from search_spaces.errors import StudyError
from tests.orchestrator.records import make_spec

ROOT = Path(__file__).parents[3]
BASIC = "Basic " + base64.b64encode(b"ann:hunter2").decode()
# what is wanted under the first part of a path
WANTED = {
    "basic": ("Authorization", BASIC),
    "token": ("Authorization", "Bearer t-1234"),
    "signed": ("Authorization", "Signed by a plug-in"),
}
PLUGIN = """
from mlflow.tracking.request_auth.abstract_request_auth_provider import RequestAuthProvider

def sign(request):
    request.headers["Authorization"] = "Signed by a plug-in"
    return request

class Signed(RequestAuthProvider):
    def get_name(self):
        return "signed"

    def get_auth(self):
        return sign
"""
ENTRY_POINTS = """
[mlflow.request_auth_provider]
signed = credential_plugin:Signed
"""
TRY_EACH = """
import json, os, sys
from orchestrator.tracking.mlflow_reachability import check_tracking
from search_spaces.errors import StudyError
from tests.orchestrator.records import make_spec
for uri, environment in json.load(sys.stdin):
    os.environ.update(environment)
    try:
        check_tracking(make_spec(tracking={"uri": uri}))
        print("fine")
    except StudyError as error:
        print(error)
    for name in environment:
        del os.environ[name]
"""

TRY_AGAIN, USER_ERROR = ExitCode.TRY_AGAIN, ExitCode.USER_ERROR


class Asked(NamedTuple):
    path: str
    allowed: bool


class Server(http.server.ThreadingHTTPServer):
    """Answers 200 if the request has the header that its path requires, else 401.

    /403 and the like answer that. `artifacts` is where the one experiment keeps its own.
    """

    artifacts = "mlflow-artifacts:/0"

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[Asked] = []
        self.address = f"http://127.0.0.1:{self.server_address[1]}"


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self._answer()

    def _answer(self) -> None:
        server = self.server
        assert isinstance(server, Server)
        word, _, path = urlsplit(self.path).path.strip("/").partition("/")
        if word.isdigit():
            return self._send(int(word), b"")
        if word == "page":
            return self._send(200, b"<html>Sign in</html>")
        name, value = WANTED.get(word, ("", ""))
        allowed = self.headers.get(name) == value if name else True
        server.asked.append(Asked(path, allowed))
        if not allowed:
            return self._send(401, b"You are not authenticated.")
        experiment = {"experiment_id": "0", "name": "a", "artifact_location": server.artifacts}
        body = {"files": []} if "mlflow-artifacts" in path else {"experiments": [experiment]}
        return self._send(200, json.dumps(body).encode())

    def _send(self, code: int, body: bytes) -> None:
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Logs nothing."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.delenv("http_proxy", raising=False)
    with Server() as httpd:
        thread = threading.Thread(target=httpd.serve_forever, args=(0.02,))
        thread.start()
        yield httpd
        httpd.shutdown()
        thread.join()


def refused(uri: str, code: ExitCode = USER_ERROR) -> str:
    """Returns the sentence that refuses a server, and ends a sweep with this code."""
    with pytest.raises(StudyError) as caught:
        check_tracking(make_spec(tracking={"uri": uri}))
    assert "\n" not in str(caught.value)
    assert exit_code_after(caught.value) == code
    return str(caught.value)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("403", "answered 403: check the credentials, or start the server with --allowed-hosts"),
        ("500", "answered with errors (too many 500 error responses): see its log"),
        ("page", "tracking.uri must be the address of an MLflow server"),
    ],
)
def test_a_server_that_refuses_is_found_before_the_sweep(
    server: Server, path: str, words: str
) -> None:
    said = refused(f"{server.address}/{path}", TRY_AGAIN if path == "500" else USER_ERROR)

    words_of_refusal = ("answered", "is not an MLflow server")
    assert said.startswith(
        tuple(f"the MLflow server {server.address}/{path} {one}" for one in words_of_refusal)
    )
    assert words in said


def test_artifacts_are_listed_with_the_same_credentials(server: Server) -> None:
    check_tracking(make_spec(tracking={"uri": f"{server.address}/open"}))

    assert [asked.path.rpartition("/")[2] for asked in server.asked] == ["search", "artifacts"]


def test_an_artifact_store_that_cannot_be_used_is_found_before_the_sweep(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real bucket client without a key: botocore's own error passes through MLflow."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    server.artifacts = "s3://bucket/experiments/0"

    said = refused(f"{server.address}/open")

    assert said.startswith("the artifact store s3://bucket/experiments/0 of the MLflow server")
    assert "cannot be used: Unable to locate credentials" in said


@pytest.mark.thorough
def test_credentials_of_every_kind_are_tried(server: Server, tmp_path: Path) -> None:
    """Needs its own process: MLflow looks for plug-ins once, at import."""
    installed = tmp_path / "credential_plugin-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Name: credential-plugin\nVersion: 1.0\n")
    (installed / "entry_points.txt").write_text(ENTRY_POINTS)
    (tmp_path / "credential_plugin.py").write_text(PLUGIN)
    login = {"MLFLOW_TRACKING_USERNAME": "ann", "MLFLOW_TRACKING_PASSWORD": "hunter2"}
    at = server.address
    cases: list[tuple[str, dict[str, str], bool]] = [
        (f"{at}/basic", login, True),
        (f"{at}/basic", login | {"MLFLOW_TRACKING_PASSWORD": "wrong-one"}, False),
        (at.replace("//", "//ann:hunter2@") + "/basic", {}, True),
        (at.replace("//", "//ann:wrong-one@") + "/basic", {}, False),
        (f"{at}/token", {"MLFLOW_TRACKING_TOKEN": "t-1234"}, True),
        (f"{at}/token", {}, False),
        (f"{at}/signed", {"MLFLOW_TRACKING_AUTH": "signed"}, True),
        (f"{at}/signed", {}, False),
    ]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MLFLOW_TRACKING_")}
    done = subprocess.run(
        [sys.executable, "-c", TRY_EACH],
        input=json.dumps([case[:2] for case in cases]),
        env={**environment, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert len(said) == len(cases)
    for (uri, _, right), words in zip(cases, said, strict=True):
        assert (words == "fine") == right, (uri, words)
        if not right:
            assert "answered 401: check the credentials" in words
            assert "wrong-one" not in words
    assert sum(asked.allowed and "artifacts" in asked.path for asked in server.asked) == 4
