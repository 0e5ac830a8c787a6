"""Pictures of the documentation, taken in Chromium of a sweep that has ended and of a notebook.

`python docs/pictures.py STUDY` in the folder of a sweep, with `chromium` on the path and
`pip install nbconvert pillow`.
"""

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image

import plimsoll
from orchestrator.tracking.mlflow_client import open_client
from orchestrator.tracking.mlflow_store import store_uri
from orchestrator.tracking.mlflow_view import KIND_QUERY, sweep_pages
from orchestrator.workspace import experiment_name
from tests.rigs.mlflow_server import serves

IMAGES = Path(__file__).with_name("images")
PORT = 5044
ASSISTANT = 480  # pixels of MLflow's own panel at the right, which opens in a new browser
CELLS = ("import plimsoll", "sweep = plimsoll.open_study({study!r})", "sweep.best", "sweep")


def shoot(address: str, name: str, width: int, height: int, right: int = 0) -> None:
    """Takes a picture of a page, without some pixels at the right."""
    file = IMAGES / f"{name}.png"
    with TemporaryDirectory() as profile:
        flags = ("--headless", "--no-sandbox", "--hide-scrollbars", "--virtual-time-budget=60000")
        size = f"--window-size={width + right},{height}"
        folder = f"--user-data-dir={profile}"
        command = (shutil.which("chromium") or "chromium", *flags, size, folder)
        subprocess.run((*command, f"--screenshot={file}", address), check=True)
    Image.open(file).crop((0, 0, width, height)).quantize().save(file, optimize=True)


def shoot_mlflow(study: str) -> None:
    """Takes pictures of the table of runs, its charts, the sweep's run, and two runs compared."""
    state = plimsoll.open_study(study).state
    pages = sweep_pages(state.spec, state.study, port=PORT)
    client = open_client(store_uri(state.spec))
    experiment = client.get_experiment_by_name(experiment_name(state.spec, state.study))
    runs = client.search_runs([experiment.experiment_id], order_by=["metrics.rank"])
    names = ("best: ", "baseline: ")  # of which the plan's name follows
    two = [next(run for run in runs if run.info.run_name.startswith(name)) for name in names]
    ids = json.dumps([run.info.run_id for run in two])
    words = f"runs={ids}&experiments={json.dumps([experiment.experiment_id])}"
    home = pages.trials.partition("#")[0]
    compared = f"{home}#/compare-runs?{words}&{KIND_QUERY}"
    command = [Path(sys.executable).with_name("plimsoll"), "ui", study, "--port", str(PORT)]
    server = subprocess.Popen(command)
    try:
        while not serves(PORT):
            time.sleep(0.5)
        shoot(pages.trials, "mlflow-runs", 1404, 757, ASSISTANT)
        shoot(f"{pages.trials}&compareRunsMode=CHART", "mlflow-charts", 1404, 1007, ASSISTANT)
        shoot(str(pages.sweep), "mlflow-answer", 1404, 757, ASSISTANT)
        shoot(compared.replace(" ", ""), "mlflow-compare", 1404, 900, ASSISTANT)
    finally:
        server.send_signal(signal.SIGINT)
        server.wait()


def shoot_notebook(study: str) -> None:
    """Takes a picture of a notebook that opens the study."""
    cells = [
        {"cell_type": "code", "id": f"cell-{number}", "metadata": {}, "execution_count": None}
        | {"outputs": [], "source": source.format(study=study)}
        for number, source in enumerate(CELLS)
    ]
    notebook = {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    file = Path("mine.ipynb").absolute()
    file.write_text(json.dumps(notebook))
    words = ("-m", "nbconvert", "--to", "html", "--execute", str(file))
    subprocess.run((sys.executable, *words), check=True)
    shoot(file.with_suffix(".html").as_uri(), "notebook", 1200, 900)


def main(study: str) -> None:
    """Takes all pictures but the one of the live view."""
    shoot(Path("plimsoll-runs", study, "report.html").absolute().as_uri(), "report", 1200, 1480)
    shoot_notebook(study)
    shoot_mlflow(study)


if __name__ == "__main__":
    main(sys.argv[1])
