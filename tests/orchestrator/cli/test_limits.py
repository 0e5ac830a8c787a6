"""Limits of a machine: a command ends at once, with a sentence and 75, or 141 without a reader."""

import errno
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchestrator.host import check_limits
from search_spaces.errors import MachineError, UserError, written

LEAST = "model: gpt2\ntrain: {global_batch: 32}\ncluster: {device: cpu}\n"
SECONDS = 60.0
# reads what only root may, as root's Python, but is bound by limits
USER = ["setpriv", "--reuid=65534", "--inh-caps=+dac_override", "--ambient-caps=+dac_override"]


def plimsoll(
    *words: str, folder: Path, before: Callable[[], None] | None = None, is_read: bool = True
) -> tuple[int, str]:
    """Runs a command; returns its exit code and what it says to stderr."""
    command = subprocess.Popen(
        [sys.executable, "-m", "plimsoll", *words],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=before,  # noqa: PLW1509
    )
    if not is_read and command.stdout is not None:
        command.stdout.close()
        command.stdout = None
    _, said = command.communicate(timeout=SECONDS)
    return command.returncode, said


@pytest.mark.parametrize("words", [("schema",), ("models",), ("models", "--json")])
def test_n6_a_reader_of_stdout_that_has_gone_ends_the_command_in_silence(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    code, said = plimsoll(*words, folder=tmp_path, is_read=False)

    assert (code, said) == (141, "")


@pytest.mark.parametrize("command", ["tune", "check"])
def test_n6_a_working_folder_that_is_gone_is_said(command: str, tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()

    code, said = plimsoll(command, "demo.yaml", folder=folder, before=lambda: shutil.rmtree(folder))

    assert code == 75
    assert "the working folder is gone" in said


def test_n6_a_sweep_with_few_files_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "demo.yaml").write_text(LEAST)

    code, said = plimsoll(
        *("tune", "demo.yaml"),
        folder=tmp_path,
        before=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64)),
    )

    assert code == 75
    assert "a process may open 64 files here" in said
    assert not (tmp_path / "plimsoll-runs").exists()


def test_n6_a_missing_folder_for_temporary_files_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    check_limits(has_workers=True)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path / "missing"))
    with pytest.raises(MachineError, match="no folder for temporary files"):
        check_limits(has_workers=True)


MOUNTS = {
    "a read-only working folder": (
        "mount --bind . . && mount -o remount,ro,bind . && cd .",
        r"study\.storage .* cannot be opened: .*Read-only file system",
    ),
    "a small /dev/shm": (
        "mount -t tmpfs -o size=1m tmpfs /dev/shm",
        "/dev/shm has 1 MiB free, and worker processes need at least 32: make room there",
    ),
    "a full temporary folder": (
        "mkdir full && mount -t tmpfs -o size=1m tmpfs full && export RAY_TMPDIR=$PWD/full",
        "full is full: make room there, or set RAY_TMPDIR",
    ),
    "few processes": (
        "ulimit -u 40",
        r"a user may start 40 processes here, and a sweep needs 256: raise .* \(ulimit -u\)",
    ),
}


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that every user may enter."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        yield Path(folder)


@pytest.mark.parametrize("limit", MOUNTS)
def test_n6_what_a_machine_does_not_give_is_said_before_ray_starts(
    limit: str, public: Path
) -> None:
    """Uses a mount namespace of its own; few processes are for users without a root's rights."""
    before, words = MOUNTS[limit]
    if subprocess.run(["unshare", "-rm", "true"], check=False).returncode:
        pytest.skip("this machine allows no namespaces")
    (public / "sweep.yaml").write_text(LEAST)
    tune = f"{sys.executable} -m plimsoll tune sweep.yaml"
    mode = "-m" if os.geteuid() == 0 else "-rm"
    as_user = USER if limit == "few processes" and os.geteuid() == 0 else []

    run = subprocess.run(
        ["unshare", mode, *as_user, "bash", "-c", f"{before} && {tune}"],
        cwd=public,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )

    assert run.returncode == 75, run.stderr
    assert re.search(words, run.stderr), run.stderr
    assert "starting Ray" not in run.stdout


def test_n6_no_place_for_temporary_files_at_all_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere() -> str:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")

    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    monkeypatch.setattr(tempfile, "gettempdir", nowhere)

    with pytest.raises(MachineError, match="No usable temporary directory"):
        check_limits(has_workers=True)


@pytest.mark.parametrize(
    ("number", "kind"), [("EROFS", MachineError), ("ENOSPC", MachineError), ("EACCES", UserError)]
)
def test_n6_a_file_system_that_takes_nothing_is_the_machines(
    number: str, kind: type[UserError]
) -> None:
    code = getattr(errno, number)
    with (
        pytest.raises(UserError, match=r"out\.json cannot be written") as caught,
        written("out.json"),
    ):
        raise OSError(code, os.strerror(code))
    assert type(caught.value) is kind
