"""The command line as a user runs it: a process of its own in its own folder."""

import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from orchestrator.core.records import Record
from orchestrator.study.reader import load_records
from search_spaces.specification.load import load_spec, spec_to_tree
from tests.commands import run_command
from tests.rigs.ray_head import environment
from tests.workers.values import a_spec

ONE_WAY = {
    "engine": ["torch"],
    "attention": ["sdpa"],
    "batching": ["padded"],
    "offload_optimizer": ["none"],
}
"""Space of plans that differ only in what a test adds."""
PLIMSOLL = str(Path(sys.executable).with_name("plimsoll"))


def write_sweep(path: Path, *, space: Mapping[str, Any], **sections: Any) -> None:
    """Writes a specification of the tiny Llama: `a_spec` with `space` and `sections`.

    Nothing is validated, and no trial ends early because it is slow.
    """
    usual = {"objective": {"max_seconds": 30, "racing": False}, "validation": {"enabled": False}}
    sections = {name: usual.get(name, {}) | sections.get(name, {}) for name in usual | sections}
    spec = a_spec(space=ONE_WAY | space, **sections)
    path.write_text(yaml.safe_dump(spec_to_tree(spec)))


def plimsoll(
    *arguments: str, folder: Path, seconds: float = 800, **extra: str
) -> subprocess.CompletedProcess[str]:
    """Runs `plimsoll` in a folder, which is also its home, and waits for it."""
    return plimsoll_in(environment(folder, **extra), *arguments, folder=folder, seconds=seconds)


def plimsoll_in(
    environ: Mapping[str, str], *arguments: str, folder: Path, seconds: float = 800
) -> subprocess.CompletedProcess[str]:
    """Runs `plimsoll` in a folder with an environment, such as one that names a cluster."""
    return run_command([PLIMSOLL, *arguments], folder=folder, environment=environ, seconds=seconds)


def records_in(folder: Path, name: str = "sweep") -> tuple[Record, ...]:
    """Returns the trials of a study in a folder's `plimsoll-runs`, from wherever it is read."""
    spec = load_spec(folder / f"{name}.yaml")
    storage = f"sqlite:///{folder}/plimsoll-runs/{name}/study.db"
    study = spec.study.model_copy(update={"storage": storage})
    return load_records(spec.model_copy(update={"study": study}), name)


def submitted(
    folder: Path,
    environ: dict[str, str],
    *,
    at: Callable[[str], object],
    do: Callable[[], object],
    inside: Sequence[str] = (),
) -> tuple[str, int]:
    """Submits a sweep, does something to it, and follows its log to the end.

    Args:
        folder: With `sweep.yaml`.
        environ: In which the cluster is reached.
        at: Tells of the log so far, after each line, whether it is time; once it is true.
        do: What is done then.
        inside: Words that go before the command, such as those of another network.

    Returns:
        The log, and the exit code.
    """
    watching = subprocess.Popen(
        [*inside, PLIMSOLL, "submit", "sweep.yaml"],
        cwd=folder,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert watching.stdout is not None
    log, done = "", False
    with watching.stdout as lines:
        for line in lines:
            log += line
            if not done and at(log):
                done = True
                do()
    assert done, log
    return log, watching.wait(600)
