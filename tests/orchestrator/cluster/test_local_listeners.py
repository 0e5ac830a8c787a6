"""Ray that a sweep starts here: where it listens, who enters its folder, what it ends."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from orchestrator.cluster.runtime import ray_folder
from tests.rigs.ray_head import environment

ROOT = str(Path(__file__).parents[3])
LOOPBACK = {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
NOBODY = 65534
# connects as a sweep does, says where Ray keeps its session, and waits to be looked at
CONNECTS = """
import sys
from orchestrator.cluster.cleanup import session_folder
from orchestrator.cluster.runtime import connected
from search_spaces.specification.schema import SweepSpec
spec = SweepSpec.model_validate({"model": "gpt2", "train": {"global_batch": 4},
                                 "cluster": {"device": "cpu", "workers": 1}})
with connected(spec):
    import ray
    ray.get(ray.remote(lambda: 1).remote())
    print(session_folder(), flush=True)
    sys.stdin.readline()
"""
# the same in a program that has a server of multiprocessing, whose arguments name Ray's folder
FORKS = """
import multiprocessing, ray
context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(["ray"])
context.Process(target=print).start()
{connects}
child = context.Process(target=print, args=("alive",))
child.start()
child.join()
"""


def listeners(driver: psutil.Process) -> dict[str, set[str]]:
    """Returns the addresses that a driver and its processes listen on, by their names."""
    listening: dict[str, set[str]] = {}
    for process in (driver, *driver.children(recursive=True)):
        try:
            name = process.name()
            for connection in process.net_connections("inet"):
                if connection.status == psutil.CONN_LISTEN:
                    listening.setdefault(name, set()).add(connection.laddr.ip)
        except psutil.Error:  # it has just ended
            continue
    return listening


def enters(folder: Path, as_user: int) -> bool:
    """Tells if another user gets into a folder, by trying."""
    code = f"import os; os.setgid({as_user}); os.setuid({as_user}); os.listdir({str(folder)!r})"
    return not subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=False
    ).returncode


@pytest.mark.thorough
def test_s2_s3_ray_listens_on_loopback_and_its_folder_is_private(tmp_path: Path) -> None:
    driver = subprocess.Popen(
        [sys.executable, "-c", CONNECTS],
        env=environment(tmp_path, PYTHONPATH=ROOT),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert driver.stdout is not None
        session = Path(driver.stdout.readline().strip())
        listening = listeners(psutil.Process(driver.pid))
    finally:
        driver.communicate("\n", timeout=600)

    assert {"gcs_server", "raylet"} <= listening.keys()
    assert set().union(*listening.values()) <= LOOPBACK, listening
    private = session.parents[1]
    assert private.name == f"ray-{os.getuid()}"
    assert stat.S_IMODE(private.stat().st_mode) == 0o700
    if os.getuid() == 0:
        assert enters(session, 0)
        assert not enters(session, NOBODY)


@pytest.mark.thorough
def test_processes_of_the_users_program_outlive_its_ray(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-c", FORKS.format(connects=CONNECTS)],
        env=environment(tmp_path, PYTHONPATH=ROOT),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )

    assert (run.returncode, run.stdout.split()[-1:]) == (0, ["alive"]), run.stderr


def test_s3_a_folder_that_somebody_else_made_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    made = ray_folder()
    assert stat.S_IMODE(made.stat().st_mode) == 0o700
    made.chmod(0o777)
    assert stat.S_IMODE(ray_folder().stat().st_mode) == 0o700
    made.rmdir()
    (tmp_path / "planted").mkdir()
    made.symlink_to(tmp_path / "planted")
    with pytest.raises(PermissionError, match="belongs to somebody else: set RAY_TMPDIR"):
        ray_folder()
    if os.getuid() == 0:
        made.unlink()
        made.mkdir()
        os.chown(made, NOBODY, NOBODY)
        with pytest.raises(PermissionError, match="belongs to somebody else"):
            ray_folder()
