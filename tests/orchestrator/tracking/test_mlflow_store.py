"""Address and checks of the tracking store, on real files."""

import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.cli.exit_codes import ExitCode, exit_code_after
from orchestrator.tracking.mlflow_reachability import check_tracking
from orchestrator.tracking.mlflow_store import is_database, is_folder, sqlite_file, store_uri
from orchestrator.tracking.mlflow_view import Pages, sweep_pages, ui_command
from search_spaces.errors import StudyError
from tests.orchestrator.records import make_spec


def test_importing_the_package_leaves_mlflow_alone() -> None:
    code = "import sys, orchestrator.tracking.mlflow_callback; sys.exit('mlflow' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_store_is_in_the_folder_of_the_studies(tmp_path: Path) -> None:
    spec = make_spec(study={"folder": str(tmp_path / "new")})

    check_tracking(spec)

    assert store_uri(spec) == f"sqlite:///{tmp_path}/new/mlflow.db"
    assert ui_command(spec, Pages(trials=""), port=5001) == [
        sys.executable, "-m", "mlflow", "ui",
        "--backend-store-uri", store_uri(spec),
        "--artifacts-destination", (tmp_path / "new" / "mlartifacts").as_uri(),
        "--host", "127.0.0.1", "--port", "5001", "--workers", "1",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("uri", "reason"),
    [
        ("sqlite:////proc/nowhere/mlflow.db", "/proc/nowhere"),
        ("sqlite:///{folder}/text.db", "cannot be opened: file is not a database"),
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
    away = "127.0.0.1:9" in uri  # where nobody listens yet
    assert exit_code_after(caught.value) == (ExitCode.TRY_AGAIN if away else ExitCode.USER_ERROR)
    check_tracking(make_spec(tracking={"enabled": False, "uri": "redis://127.0.0.1"}))


@pytest.mark.parametrize(
    ("uri", "kind"),
    [
        ("file:///srv/mlruns", "folder"),
        ("databricks", "service"),
        ("http://mlflow:5000", "service"),
        ("sqlite:////srv/mlflow.db?timeout=9", "database"),
    ],
)
def test_a_store_is_a_folder_a_database_or_asked_by_the_client(uri: str, kind: str) -> None:
    kinds = {"folder": is_folder(uri), "database": is_database(uri)}

    assert [name for name, holds in kinds.items() if holds] == [kind] * (kind in kinds)
    assert sqlite_file("sqlite:////srv/mlflow.db?timeout=9") == Path("/srv/mlflow.db")


def test_a_tracking_server_has_a_page_of_its_own() -> None:
    spec = make_spec(tracking={"uri": "http://ann:hunter2@127.0.0.1:9/"})
    pages = sweep_pages(spec, "demo")  # nothing answers there

    assert pages == Pages(trials="http://ann@127.0.0.1:9")
    assert ui_command(spec, pages)[1:] == ["-m", "webbrowser", "http://ann@127.0.0.1:9"]
