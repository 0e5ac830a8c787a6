"""Runs of exported commands with a recorder: commands that fail, hang or do not train."""

import json
import time
from pathlib import Path

import psutil
import pytest

from orchestrator.export.observed_run import LOG_NAME, environment_of, first_failure, observed_run
from search_spaces.errors import UserError
from search_spaces.settings.export_manifest import EXPORTED_FILE, ExportManifest
from tests.orchestrator.export.values import an_export

ROOT = Path(__file__).parents[3]
TRAINS = """
import torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
for step in range(3):
    for _ in range(2):
        (model(torch.ones(3, 4)).mean() * 0 + step).backward()
    optimizer.step()
"""
HANGS = """
import subprocess, sys, time
print("waiting for nothing", flush=True)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", "a child of the run"])
time.sleep(600)
"""


@pytest.fixture(autouse=True)
def this_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes started processes use the recorder of this checkout."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def run(folder: Path, script: str, *, seconds: float = 600.0, local: bool = True) -> list[float]:
    """Returns the observed losses of a script."""
    (folder / "train.py").write_text(script)
    exported = an_export(local=local)
    (rank,) = observed_run(exported, folder, steps=3, seconds=seconds)
    assert (rank.settings.wrapper, rank.settings.rows) == ("none", 3)
    assert [step.passes for step in rank.steps] == [2, 2, 2]
    assert rank.settings.rates == (("momentum", 0.0),)
    return [step.loss or 0.0 for step in rank.steps]


def test_losses_of_passes_are_added_up(tmp_path: Path) -> None:
    assert run(tmp_path, TRAINS) == [0.0, 2.0, 4.0]


SHARDS = """
import torch
from torch.distributed.algorithms._checkpoint import checkpoint_wrapper as wrappers
from torch.distributed.fsdp import fully_shard
store = torch.distributed.HashStore()
torch.distributed.init_process_group("gloo", rank=0, world_size=1, store=store)
kept, recomputed, offloaded = (torch.nn.Linear(4, 4) for _ in range(3))
again = [wrappers.checkpoint_wrapper(one) for one in (recomputed, offloaded)]
model = torch.nn.Sequential(kept, again[0], wrappers.offload_wrapper(again[1]))
for module in (*model, model):
    fully_shard(module)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    model(torch.ones(3, 4)).mean().backward()
    optimizer.step()
"""


def test_sharded_blocks_are_counted_by_their_class_under_any_wrapper(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SHARDS)

    (rank,) = observed_run(an_export(), tmp_path, steps=3, seconds=600)

    assert rank.settings.wrapped == (("Linear", 3), ("Sequential", 1))
    assert rank.settings.recomputed == (("Linear", 2),)


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("raise SystemExit('no such model')", r"exit code 1: no such model \(the whole .*\.log"),
        (
            "def f():\n    raise OSError('no\\nsuch model')\nf()",
            r"code 1: rank 0 failed with OSError: no such model \(train.py, line 2\) \(the whole",
        ),
        ("print('done')", "no process took two optimizer steps"),
    ],
)
def test_what_did_not_train_is_one_message(script: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=words) as failed:
        run(tmp_path, script)
    assert len(str(failed.value).splitlines()) == 1


RANKS_FAIL = """
import os, sys, time
rank = int(os.environ["RANK"])
print(f"rank {{rank}} begins", flush=True)  # in one piece: the others write there too
if rank == 0:
    open("begun", "w").close()
    time.sleep(600)
while not os.path.exists("begun"):  # what it says is not the last that is said
    time.sleep(0.1)
{fault}
"""


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("raise ValueError('data of rank 1 is empty')", "rank 1 failed with ValueError: data of"),
        (
            "raise SystemExit('topics.txt is missing')",
            "failed with exit code 1: topics.txt is missing (the",
        ),
        ("os.kill(os.getpid(), 9)", "failed with exit code 1: rank 1 was killed by SIGKILL"),
    ],
)
def test_the_rank_that_failed_tells_and_not_its_launcher(
    fault: str, words: str, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(RANKS_FAIL.format(fault=fault))
    exported = an_export(command="torchrun --nproc-per-node 2 train.py")

    with pytest.raises(UserError) as failed:
        observed_run(exported, tmp_path, steps=3, seconds=500)

    assert words in str(failed.value)
    assert len(str(failed.value).splitlines()) == 1
    log = (tmp_path / LOG_NAME).read_text()
    assert "rank 1 begins" in log
    assert "ChildFailedError" in log


TORCHRUN = """W1125 00:47:00.510000 77 site-packages/torch/distributed/run.py:851] ****
train: data/one.txt is missing
W1125 00:47:07.1 77 torch/distributed/elastic/multiprocessing/api.py:1] Sending process 81 SIGTERM
E1125 00:47:07.2 77 torch/distributed/elastic/multiprocessing/api.py:9] failed (exitcode: {code}) \
local_rank: 1 (pid: 80) of binary: python
Traceback (most recent call last):
  File "torchrun", line 8, in <module>
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
"""


@pytest.mark.parametrize(
    ("log", "words"),
    [
        (TORCHRUN.format(code=1), "train: data/one.txt is missing"),
        (
            TORCHRUN.format(code=-9),
            "rank 1 was killed by SIGKILL, as by the OOM killer",
        ),
        ("", ""),
    ],
)
def test_of_a_log_the_rank_speaks_and_not_its_launcher(
    log: str, words: str, tmp_path: Path
) -> None:
    (tmp_path / "log").write_text(log)

    assert first_failure(tmp_path) == words


@pytest.mark.thorough
def test_what_hangs_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="took longer than 60 s: waiting for nothing"):
        run(tmp_path, HANGS, seconds=60)

    until = time.monotonic() + 600
    while (left := _children()) and time.monotonic() < until:
        time.sleep(0.1)
    assert not left


def _children() -> list[psutil.Process]:
    found = psutil.process_iter(["cmdline", "status"])
    return [
        process
        for process in found
        if "a child of the run" in (process.info["cmdline"] or ())
        and process.info["status"] != psutil.STATUS_ZOMBIE
    ]


@pytest.mark.parametrize(
    "command",
    [
        *("sh -c 'touch ran'", 'python -c \'open("ran", "w")\'', "python other.py"),
        *("python ../train.py", "/bin/python train.py", "torchrun --no-python touch ran"),
        *("torchrun --nproc-per-node 1 -m train", "python train.py; touch ran", ""),
        *("accelerate launch --config_file other.yaml train.py", "python train.py\ntouch ran"),
    ],
)
def test_s4_another_command_than_those_of_exports_is_not_run(command: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINS)

    with pytest.raises(UserError, match="is not run: plimsoll export starts files of the folder"):
        observed_run(an_export(command=command), tmp_path, steps=3, seconds=5)
    assert not (tmp_path / "ran").exists()


def test_s4_the_environment_follows_from_the_plan_alone(tmp_path: Path) -> None:
    exported = an_export(environment=(("LD_PRELOAD", "/tmp/planted.so"), ("PYTHONSTARTUP", "x")))

    assert {"LD_PRELOAD", "PYTHONSTARTUP"}.isdisjoint(environment_of(exported, tmp_path))
    assert environment_of(an_export(knobs={"allocator": "mmap"}), tmp_path)[
        "MALLOC_MMAP_THRESHOLD_"
    ] == str(2**20)


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "a/../../b", "..\\secret", ""])
def test_s4_files_outside_of_the_folder_are_not_read(name: str, tmp_path: Path) -> None:
    text = an_export(files=(("kept.py", "0"),)).to_json().replace("kept.py", json.dumps(name)[1:-1])
    (tmp_path / EXPORTED_FILE).write_text(text)

    with pytest.raises(UserError, match="is not a file of the folder"):
        ExportManifest.read(tmp_path)


def test_what_runs_elsewhere_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not train on this machine"):
        run(tmp_path, TRAINS, local=False)
