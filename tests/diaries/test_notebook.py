"""A notebook user's diary: README's lines as they stand, what comes back, a cell's command."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.plimsoll.own_net import NET

pytestmark = [pytest.mark.slow, pytest.mark.thorough]
ROOT = Path(__file__).parents[2]
(LINES,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)
MOST_CHARACTERS = 20_000  # of what a cell writes, with all replacements of its line
OWN = """
import torch

samples = [{"x": torch.full((8,), number / 99), "y": torch.ones(8)} for number in range(99)]

class Loader:
    def __iter__(self):
        plan = sweep.best.plan
        batch = torch.utils.data.default_collate(samples[: plan.micro_batch])
        yield from [[batch] * plan.accumulation] * 3

loader = Loader()
"""
COMMAND = "!plimsoll tune gpt2.yaml"
GPT2 = """
model: {name: gpt2, config: {n_embd: 32, n_layer: 1, n_head: 2, n_positions: 32, vocab_size: 300}}
cluster: {workers: 1, device: cpu}
train: {global_batch: 4, sequence_length: 32, precision: fp32}
space: {micro_batch: [2, 4], checkpoint_ratio: [0.0], attention: [sdpa]}
objective: {max_seconds: 0.5}
validation: {enabled: false, repeats: 0}
tracking: {enabled: false}
"""
SHOWN = ("loss", "sweep", "sweep.best", "sweep.to_pandas()", "sweep.export()")


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """Executes the notebook in a folder of its own; returns what each cell shows."""
    folder = tmp_path_factory.mktemp("notebook")
    cells = [
        {"cell_type": "code", "id": f"cell-{number}", "metadata": {}, "execution_count": None}
        | {"outputs": [], "source": source}
        for number, source in enumerate((NET + OWN, LINES, *SHOWN, COMMAND))
    ]
    notebook = {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    (folder / "mine.ipynb").write_text(json.dumps(notebook))
    (folder / "gpt2.yaml").write_text(GPT2)
    commands = Path(sys.executable).parent
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    subprocess.run(
        [commands / "jupyter-execute", "--inplace", "--timeout=800", "mine.ipynb"],
        cwd=folder,
        env={
            **kept,
            "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "IPYTHONDIR": str(folder / "ipython"),
            "JUPYTER_RUNTIME_DIR": str(folder / "runtime"),
            "OMP_NUM_THREADS": "1",
        },
        check=True,
    )
    assert (folder / "Net-torchrun" / "train.py").is_file()
    executed = json.loads((folder / "mine.ipynb").read_text())["cells"]
    return {"".join(cell["source"]): cell["outputs"] for cell in executed}


def text(output: dict[str, Any]) -> str:
    return "".join(output["text"] if "text" in output else output["data"]["text/plain"])


def test_readmes_lines_show_one_line_that_replaced_itself(outputs: dict[str, Any]) -> None:
    assert re.findall(r"^import .*|\.tune\(|\.apply\(|\.step\(", LINES, re.MULTILINE) == [
        *("import plimsoll", ".tune(", ".apply(", ".step(")
    ]
    assert [output["output_type"] for output in outputs[LINES]] == ["display_data"], outputs[LINES]
    assert re.fullmatch(r"\[0:..:..\] sweep ended: .*; best is trial .*", text(*outputs[LINES]))
    assert float(text(*outputs["loss"])) > 0  # of `training.step`


@pytest.mark.parametrize(
    ("cell", "form", "words"),
    [
        ("sweep", "text/html", "<iframe srcdoc="),
        ("sweep", "text/plain", "<Sweep Net: trial "),
        ("sweep.best", "text/plain", "<TunedPlan: trial "),
        ("sweep.to_pandas()", "text/html", "plan_words"),
        ("sweep.export()", "text/plain", "PosixPath('Net-torchrun')"),
    ],
)
def test_what_comes_back_is_shown(
    cell: str, form: str, words: str, outputs: dict[str, Any]
) -> None:
    (output,) = outputs[cell]

    assert words in "".join(output["data"][form])


def test_a_command_of_a_cell_writes_lines_and_no_frames(outputs: dict[str, Any]) -> None:
    written = "".join(map(text, outputs[COMMAND]))

    assert len(written) < MOST_CHARACTERS
    assert written.startswith("[0:00:00] reading the model")
    assert not re.search(r"\x1b\[[0-9]*[AKJ]", written)  # moves the cursor or erases
    assert written.count("starts: ") == 2  # trials
    assert "next: plimsoll export gpt2.yaml" in written.splitlines()[-2:][0]
