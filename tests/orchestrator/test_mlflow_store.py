"""Where the tracking store is, and whether it can be used; against real files and sockets."""

from __future__ import annotations

import http.server
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.mlflow_tracking import check_tracking, store_uri, ui_address, ui_command
from search_spaces.errors import StudyError
from tests.orchestrator.records import make_spec


def test_importing_the_package_leaves_mlflow_alone() -> None:
    code = "import sys, orchestrator.mlflow_tracking; sys.exit('mlflow' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_store_is_in_the_folder_of_the_studies(tmp_path: Path) -> None:
    spec = make_spec(study={"folder": str(tmp_path / "new")})

    check_tracking(spec)

    assert store_uri(spec) == f"sqlite:///{tmp_path}/new/mlflow.db"
    assert ui_command(spec, port=5001) == [
        sys.executable, "-m", "mlflow", "ui",
        "--backend-store-uri", store_uri(spec),
        "--default-artifact-root", (tmp_path / "new" / "mlartifacts").as_uri(),
        "--host", "127.0.0.1", "--port", "5001", "--workers", "1",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("uri", "reason"),
    [
        ("sqlite:////proc/nowhere/mlflow.db", "/proc/nowhere"),
        ("sqlite:///{folder}/text.db", "cannot be opened: file is not a database"),
        ("sqlite:///{folder}", "is no file that can be read and written"),
        ("http://127.0.0.1:9", "does not answer"),
        ("postgresql://ann:secret@127.0.0.1:9/mlflow", "postgresql://ann@127.0.0.1:9/mlflow"),
        ("redis://127.0.0.1", "MLflow has no such store"),
    ],
)
def test_a_store_that_cannot_be_opened_is_found_before_the_sweep(
    uri: str, reason: str, tmp_path: Path
) -> None:
    (tmp_path / "text.db").write_text("a text that is no database at all, by any header")
    spec = make_spec(tracking={"uri": uri.format(folder=tmp_path)})

    with pytest.raises(StudyError) as caught:
        check_tracking(spec)

    assert reason in str(caught.value)
    assert "secret" not in str(caught.value)
    check_tracking(make_spec(tracking={"enabled": False, "uri": "redis://127.0.0.1"}))


@pytest.fixture
def server() -> Iterator[str]:
    """A server that answers as its path says: http://.../403 answers 403."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(int(self.path.split("/")[1]))
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Says nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as httpd:
        thread = threading.Thread(target=httpd.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{httpd.server_address[1]}"
        httpd.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("code", "reason"),
    [(403, "--allowed-hosts"), (401, "USERNAME"), (404, "address"), (500, "see its log")],
)
def test_a_server_that_refuses_is_found_before_the_sweep(
    server: str, code: int, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("http_proxy", raising=False)
    check_tracking(make_spec(tracking={"uri": f"{server}/200"}))

    with pytest.raises(StudyError, match=f"answered {code}") as caught:
        check_tracking(make_spec(tracking={"uri": f"{server}/{code}"}))

    assert reason in str(caught.value)


def test_a_tracking_server_has_a_page_of_its_own() -> None:
    spec = make_spec(tracking={"uri": "http://mlflow.example:5000"})

    assert ui_command(spec)[1:] == ["-m", "webbrowser", "http://mlflow.example:5000"]
    assert ui_address(spec, "demo") == "http://mlflow.example:5000"


def test_the_artifact_of_the_spec_holds_no_password() -> None:
    from orchestrator.mlflow_tracking.artifacts import at_start

    spec = make_spec(
        study={"storage": "postgresql://ann:secret@db/optuna"},
        tracking={"uri": "http://ann:secret@mlflow"},
    )

    assert "secret" not in at_start(spec)["spec.yaml"]
