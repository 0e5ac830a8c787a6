"""The machine's own account of itself, and the tests that need its GPU."""

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import torch

from benchmarks.gpu.run import Run
from orchestrator.host import system_facts

_TESTS = Path(__file__).parents[2] / "tests" / "workers"
_TAIL_LETTERS = 4000


def measure(run: Run) -> None:
    """Writes versions, power limits and clocks, then runs the tests."""
    if not run.has("machine"):
        smi = shutil.which("nvidia-smi")
        command = [smi, "-q"] if smi else ["true"]
        said = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        versions = {
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
        }
        run.write("machine", {**system_facts(), **versions, "nvidia_smi": said})
    if importlib.util.find_spec("pytest") is None:
        run.write("tests", {"missing": "pytest"})
        return
    files = [
        str(file) for file in _TESTS.rglob("test_*.py") if "mark.cuda" in file.read_text("utf-8")
    ]
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-m", "cuda", "-q", *files],
        cwd=_TESTS.parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    failed = f"pytest ended with {ended.returncode}" if ended.returncode else ""
    run.write("tests", {"failed": failed, "said": ended.stdout[-_TAIL_LETTERS:]})
