"""Arguments of the Python API: the forms of a job, and what is wrong with them in one sentence."""

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import plimsoll
from plimsoll.arguments import job_of
from search_spaces.errors import UserError
from search_spaces.specification.load import load_spec
from workers.models.function import import_function

LOCK = threading.Lock()
SAMPLES = [{"x": [float(number)] * 4, "y": torch.ones(2)} for number in range(6)]
KEYS: dict[str, Any] = {"global_batch": 8, "learning_rate": 0.5, "engine": ["torch"]}
YAML = "model: gpt2\ntrain: {global_batch: 8, learning_rate: 0.5}\nspace: {engine: [torch]}\n"


class Net(nn.Module):
    """A layer whose loss is a mean."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.layer = nn.Linear(width, 2)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (self.layer(x) - y).square().mean()


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Works in an empty folder, and restores what is trusted."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PLIMSOLL_TRUST_MODULES", "")


def test_a_job_is_given_as_keywords_a_mapping_a_file_or_a_specification() -> None:
    file = Path("mine.yaml")
    file.write_text(YAML)
    spec = load_spec(file)
    mapping = {"model": "gpt2", "train": {"global_batch": 8, "learning_rate": 0.5}}

    jobs = [
        job_of("f", "gpt2", KEYS),
        job_of("f", None, {"model": {"name": "gpt2"}, **KEYS}),
        job_of("f", mapping, {"space": {"engine": ["torch"]}}),
        job_of("f", file, {"trials": None}),
        job_of("f", spec, {}),
    ]

    assert {job.spec.model_dump_json() for job in jobs} == {spec.model_dump_json()}
    assert [job.name for job in jobs] == ["gpt2", "gpt2", "gpt2", "mine", "gpt2"]
    more = {"rank": 3, "study": "other", "data": file}
    changed = job_of("f", file, {"train": {"precision": "fp16"}, "alpha": 9.0, **more})
    assert (changed.spec.train.precision, changed.spec.train.learning_rate) == ("fp16", 0.5)
    assert (changed.spec.train.lora.rank, changed.spec.train.lora.alpha) == (3, 9.0)
    assert (changed.spec.data.files, changed.name) == (("mine.yaml",), "other")


@pytest.mark.parametrize(
    ("model", "keys", "sentence"),
    [
        ("gpt2", {"learning_rat": 1}, "learning_rat is 1: no such key; did you mean train.learn"),
        ("gpt2", {"seed": 1}, "seed is 1: no such key; it exists as train.seed and as study.seed"),
        ("gpt2", {"train": 3}, "train is 3"),
        ("gone.yaml", {}, "gone.yaml"),
        (Net(), {"data": SAMPLES}, "model is a Net, must be its class or a function"),
        (Net, {}, "data is missing: Net trains on samples"),
        (Net, {"data": "corpus.txt"}, "data is files or lengths: Net trains on samples"),
        (Net, {"data": iter(SAMPLES)}, "data is list_iterator: Net trains on samples"),
        (Net, {"data": []}, "data is an empty list: Net trains on samples"),
        (lambda: LOCK, {"data": len}, "model model cannot be sent to other processes"),
        ("gpt2", {"data": SAMPLES}, "data is a list in memory, and gpt2 trains on files"),
    ],
)
def test_a_wrong_argument_is_one_sentence(model: Any, keys: dict[str, Any], sentence: str) -> None:
    with pytest.raises(plimsoll.PlimsollError) as error:
        plimsoll.check(model, **({"global_batch": 8} | keys))

    assert sentence in str(error.value)


@pytest.mark.parametrize(
    ("data", "batch"),
    [
        (SAMPLES, {"x": [[1.0] * 4, [2.0] * 4], "y": [[1.0] * 2] * 2}),
        (DataLoader(SAMPLES, collate_fn=lambda some: {"x": len(some), "y": 0}), {"x": 2, "y": 0}),
        (lambda numbers: {"n": list(numbers)}, {"n": [1, 2]}),
    ],
)
def test_data_in_memory_goes_with_the_class_to_other_processes(data: Any, batch: Any) -> None:
    job = job_of("f", Net, {"data": data, **KEYS})

    module, make = import_function(job.spec.model.name)(width=4)
    made = {
        key: getattr(value, "tolist", lambda value=value: value)()
        for key, value in make((1, 2)).items()
    }

    assert isinstance(module, nn.Module)
    assert (made, job.name) == (batch, "Net")


@pytest.mark.parametrize("samples", [[(torch.ones(2), 1)], [{"x": [1.0]}, {"x": [1.0, 2.0]}]])
def test_samples_that_make_no_batch_are_refused_before_any_trial(samples: Any) -> None:
    name = job_of("f", Net, {"data": samples, **KEYS}).spec.model.name

    with pytest.raises(UserError, match="samples of data make no batch"):
        import_function(name)()


PROGRAM = """
import sys, torch
from torch import nn
from workers.models.own_model import save_model
from pathlib import Path
SCALE = 2.0
WORDS = torch.arange(4.0)
def helped(x):
    return x * SCALE if "a" in {"a", "b", "c"} else x
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
    def forward(self, x):
        return helped(self.layer(x) + WORDS).mean()
print(save_model(Net, [{"x": WORDS}], "Net", Path("kept")))
"""


@pytest.fixture
def name_of(tmp_path: Path) -> Callable[[str], str]:
    """Saves the model of a program in a process of its own; returns the model's name."""

    def name(text: str) -> str:
        program = tmp_path / "program.py"
        program.write_text(text)
        command = [sys.executable, str(program)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    return name


@pytest.mark.slow
def test_other_code_or_data_is_another_model_and_other_places_are_not(
    name_of: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(plimsoll.__file__).parents[1]))
    name = name_of(PROGRAM)
    changes = [("SCALE = 2.0", "SCALE = 3.0"), ("arange(4.0)", "ones(4)"), (" + WORDS", "")]

    assert name.startswith("kept/")
    assert name_of(f"# a line above\n{PROGRAM}") == name
    assert len({name, *(name_of(PROGRAM.replace(*change)) for change in changes)}) == 4
