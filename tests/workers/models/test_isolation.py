"""Code of models in processes of their own: forks of one that has the imports behind it."""

import os
import signal
import subprocess
import sys
import time
from multiprocessing.pool import ThreadPool
from pathlib import Path

import psutil
import pytest

from search_spaces.errors import MachineError, ModelError
from search_spaces.specification.schema import ModelSpec
from search_spaces.specification.sections import TrainSpec
from workers.models import isolation
from workers.models.facts import describe_to_json, model_facts
from workers.models.isolation import cancel_apart, run_apart

ROOT = Path(__file__).parents[3]
TRAIN = TrainSpec(global_batch=4)
MARKING = """
import json, os, sys, time
import torch

def make(mark, sleep=0, compute=0):
    seen = {"pid": os.getpid(), "parents": _parents(), "directory": os.getcwd(),
            "variable": os.environ.get("A_VARIABLE"), "path": sys.path}
    with open(mark + ".new", "w") as file:
        json.dump(seen, file)
    os.rename(mark + ".new", mark)
    time.sleep(sleep)
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    until = time.process_time() + compute
    while time.process_time() < until:
        pass
    os.sched_setaffinity(0, cores)
    return Net(2, WIDTH), lambda numbers: {"input": torch.ones(len(numbers), 2)}

class Net(torch.nn.Linear):
    def forward(self, input):
        return super().forward(input).mean()

def _parents():
    import psutil
    return [parent.pid for parent in psutil.Process().parents()]
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current directory with a module of the user's."""
    monkeypatch.chdir(tmp_path)
    _write(2)
    return tmp_path


def _write(width: int) -> None:
    Path("marking_net.py").write_text(MARKING.replace("WIDTH", str(width)))


def _described(mark: Path, seconds: float = 60.0, **config: object) -> None:
    model = {"name": "marking_net:make", "config": {"mark": str(mark), **config}}
    request = {"model": model, "train": TRAIN.model_dump(mode="json")}
    run_apart(describe_to_json, request, seconds)


def _seen(mark: Path) -> dict[str, object]:
    import json

    until = time.monotonic() + 600
    while not mark.exists() and time.monotonic() < until:
        time.sleep(0.05)
    found: dict[str, object] = json.loads(mark.read_text())
    return found


def test_it_sees_directory_environment_and_path_of_who_asks(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in ("1", "2"):
        monkeypatch.setenv("A_VARIABLE", number)
        monkeypatch.syspath_prepend(here / number)
        _described(here / f"mark{number}")

    first, second = _seen(here / "mark1"), _seen(here / "mark2")
    assert (first["variable"], second["variable"]) == ("1", "2")
    assert first["directory"] == second["directory"] == str(here)
    assert str(here / "2") in second["path"]  # type: ignore[operator]
    assert str(here / "2") not in first["path"]  # type: ignore[operator]
    # two processes, of one that has the imports behind it
    assert first["pid"] != second["pid"]
    assert first["parents"][1] == second["parents"][1]  # type: ignore[index]


def test_code_that_was_changed_is_read_again(here: Path) -> None:
    model = ModelSpec(name="marking_net:make", config={"mark": str(here / "mark")})
    before = model_facts(model, TRAIN).parameters
    _write(12)  # a file of another length: the time of two may be the same

    after = model_facts(model, TrainSpec(global_batch=8)).parameters

    assert (before, after) == (2 * 2 + 2, 2 * 12 + 12)


@pytest.mark.thorough
def test_it_ends_with_who_asked(here: Path) -> None:
    code = (
        "from tests.workers.models.test_isolation import _described; from pathlib import Path;"
        f" _described(Path({str(here / 'mark')!r}), sleep=600)"
    )
    (here / "tmp").mkdir()
    asking = subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(here / "tmp")},
        stderr=subprocess.PIPE,
        text=True,
    )
    pid = int(_seen(here / "mark")["pid"])  # type: ignore[call-overload]
    child = psutil.Process(pid)

    asking.kill()
    _, said = asking.communicate()  # once its forks have ended too

    psutil.wait_procs([child], timeout=600)
    assert not child.is_running()
    assert not list((here / "tmp").glob("plimsoll-*"))
    assert "Traceback" not in said


def test_a_driver_killed_with_the_answer_before_it_leaves_no_folder(here: Path) -> None:
    code = (
        "import os; from pathlib import Path; from workers.models import isolation;"
        " from tests.workers.models.test_isolation import _described;"
        " isolation._answer = lambda *_: os.kill(os.getpid(), 9);"
        f" _described(Path({str(here / 'mark')!r}))"
    )
    (here / "tmp").mkdir()
    asking = subprocess.run(
        [sys.executable, "-c", code],
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(here / "tmp")},
        stderr=subprocess.PIPE,  # ends once its forks have ended too
    )

    assert asking.returncode == -signal.SIGKILL
    assert not list((here / "tmp").glob("plimsoll-*"))


def test_a_task_is_cancelled_from_another_thread(here: Path) -> None:
    with ThreadPool(1) as pool:
        running = pool.apply_async(_described, (here / "mark",), {"sleep": 600})
        child = psutil.Process(int(_seen(here / "mark")["pid"]))  # type: ignore[call-overload]

        cancel_apart()

        with pytest.raises(ModelError, match="no process could be started"):
            running.get(600)
    assert not psutil.wait_procs([child], timeout=600)[1]
    _described(here / "next")  # in a new process


@pytest.mark.thorough
def test_a_process_that_is_gone_is_replaced(here: Path) -> None:
    _described(here / "mark1")
    process = isolation._forks._process
    assert process is not None
    process.kill()

    _described(here / "mark2")

    assert _seen(here / "mark2")["pid"]


@pytest.mark.thorough
def test_time_without_a_core_is_not_the_models(here: Path) -> None:
    """Beside fifteen others on its core, two seconds of computing take half a minute."""
    core = min(os.sched_getaffinity(0))
    busy = f"import os; os.sched_setaffinity(0, {{{core}}}); [None for _ in iter(int, 1)]"
    others = [subprocess.Popen([sys.executable, "-c", busy]) for _ in range(15)]
    try:
        _described(here / "mark", seconds=20.0, compute=2)
    finally:
        for other in others:
            other.kill()
            other.wait()

    assert _seen(here / "mark")["pid"]


def test_a_machine_that_does_not_get_to_it_is_told(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("endless_import.py").write_text("import time; time.sleep(600)")
    monkeypatch.syspath_prepend(here)
    monkeypatch.setattr(isolation, "IMPORTED", ["endless_import"])
    monkeypatch.setattr(isolation, "_START_SECONDS", 0.5)
    forks = isolation._Forks()
    monkeypatch.setattr(isolation, "_forks", forks)
    with pytest.raises(MachineError, match="within 1 s: the machine is too busy, or hangs"):
        _described(here / "mark", seconds=0.1)

    assert forks._process is not None
    assert forks._process.poll() is not None
