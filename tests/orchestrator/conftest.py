"""Fixtures of the tests of the orchestrator."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def mlflow_store(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], None]:
    """Puts an empty MLflow store into a folder of studies, as a copy: migrations take seconds."""
    file = tmp_path_factory.mktemp("mlflow") / "mlflow.db"

    def put(folder: Path) -> None:
        if not file.exists():
            from orchestrator.tracking.mlflow_reachability import configure_mlflow

            configure_mlflow()
            from mlflow import MlflowClient

            MlflowClient(tracking_uri=f"sqlite:///{file}").search_experiments(max_results=1)
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, folder / "mlflow.db")

    return put
