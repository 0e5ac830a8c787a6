"""Faults of what a sweep keeps its results in: disks, databases, MLflow."""

import contextlib
import errno
import os
import random
import shutil
import signal
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

import optuna

from benchmarks.chaos.rig import RANKS, Rig, send, signal_one
from tests.rigs.web_answers import Answer

SPARE_BYTES = 32 << 10  # left on a disk that is "full"
SHARED = Path("/dev/shm")
_EVER = 1e12  # samples/s of a record that is not ours


def lock_sqlite(rig: Rig, draw: random.Random) -> bool:
    """Another program writes to the study's file for a while."""
    study = rig.folder / "study.db"
    if not study.exists():
        return False
    connection = sqlite3.connect(study, timeout=60, isolation_level=None)
    try:
        connection.execute("BEGIN EXCLUSIVE")
        time.sleep(draw.uniform(1, 12))
        connection.execute("ROLLBACK")
    finally:
        connection.close()
    return True


def damage_records(rig: Rig, _: random.Random) -> bool:
    """The journal gets a line that is torn, and the study a trial of another program."""
    runs = rig.setting.runs / "sweep"
    if not (rig.folder / "study.db").exists() or not runs.exists():
        return False
    with (runs / "journal.jsonl").open("ab") as file:
        file.write(b'{"number": 3, "outc\xff\n')
    study = optuna.load_study(study_name="sweep", storage=rig.setting.storage)
    study.add_trial(optuna.trial.create_trial(value=_EVER))
    return True


def fill_study_disk(rig: Rig, draw: random.Random) -> bool:
    """The study's disk has no room for a while."""
    filler = _filled(rig.folder / "disk")
    time.sleep(draw.uniform(1, 12))
    filler.unlink()
    return True


def fill_temporary_disk(rig: Rig, draw: random.Random) -> bool:
    """A rank ends, and the group that is to replace it has no room for its files."""
    return _replace_a_rank(rig, draw, _filled(rig.folder / "tmp").unlink)


def fill_shared_memory(rig: Rig, draw: random.Random) -> bool:
    """A rank ends, and the group that is to replace it has no shared memory."""
    return _replace_a_rank(rig, draw, _filled(SHARED).unlink)


def use_up_inodes(rig: Rig, draw: random.Random) -> bool:
    """A rank ends, and the group that is to replace it can make no file."""
    folder = rig.folder / "tmp" / "many"
    folder.mkdir()
    try:
        for number in range(10**6):
            (folder / str(number)).touch()
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
    return _replace_a_rank(rig, draw, lambda: shutil.rmtree(folder))


def _replace_a_rank(rig: Rig, draw: random.Random, then: Callable[[], None]) -> bool:
    """Ends a rank, and waits a while for its group to be replaced."""
    try:
        signal_one(rig, draw, signal.SIGKILL, RANKS)
        time.sleep(draw.uniform(5, 30))
    finally:
        then()
    return True


def _filled(disk: Path) -> Path:
    """Leaves next to nothing on a disk; returns the file that takes the room."""
    filler = disk / "filler"
    with filler.open("wb") as file:
        while (free := shutil.disk_usage(disk).free - SPARE_BYTES) > 0:
            with contextlib.suppress(OSError):  # others have taken some of it meanwhile
                os.posix_fallocate(file.fileno(), os.fstat(file.fileno()).st_size, free)
    return filler


def slow_disk(rig: Rig, draw: random.Random) -> bool:
    """Each sync takes long for a while."""
    want = rig.machine.want
    return _for_a_while(draw, lambda: want(sync_ms=draw.randint(100, 1500)), want, most=15)


def failing_disk(rig: Rig, draw: random.Random) -> bool:
    """Writes and syncs fail for a while."""
    want = rig.machine.want
    return _for_a_while(draw, lambda: want(error=errno.EIO), want, most=12)


def _for_a_while(
    draw: random.Random, begin: Callable[[], None], end: Callable[[], None], most: float
) -> bool:
    begin()
    time.sleep(draw.uniform(1, most))
    end()
    return True


def jump(rig: Rig, draw: random.Random) -> bool:
    """The wall clock jumps, by a minute or by a day, and stays there."""
    rig.machine.want(clock_seconds=draw.choice((-1, 1)) * draw.choice((60, 3600, 86400)))
    return True


def lose_power(rig: Rig, _: random.Random) -> bool:
    """All processes end, and of the disk that remains which was synced."""
    in_memory = rig.shared_memory()
    while left := rig.processes():
        send(left, signal.SIGKILL)
        time.sleep(0.1)
    for name in in_memory:
        (SHARED / name).unlink(missing_ok=True)
    shutil.rmtree(rig.folder / "tmp")
    (rig.folder / "tmp").mkdir()
    rig.machine.lose_power()
    return True


def restart_postgres(rig: Rig, draw: random.Random) -> bool:
    """It ends, which cuts all connections, and comes back."""
    server = rig.postgres
    return _for_a_while(draw, server.stop, server.start, most=10)


def hang_postgres(rig: Rig, draw: random.Random) -> bool:
    """It takes what is sent, and answers nothing."""
    server = rig.postgres
    return _for_a_while(draw, server.suspend, server.resume, most=30)


def fail_over_postgres(rig: Rig, draw: random.Random) -> bool:
    """It is killed, and its standby, which has all transactions, takes over."""
    server = rig.postgres
    with server.standby(f"standby-{draw.getrandbits(32):08x}") as standby:
        time.sleep(draw.uniform(1, 8))
        server.fail_over(standby)
    return True


def restore_postgres(rig: Rig, draw: random.Random) -> bool:
    """The driver is killed, and the database is what it was some seconds before."""
    if rig.driver.poll() is not None:
        return False
    server = rig.postgres
    backup = server.backed_up(f"backup-{draw.getrandbits(32):08x}")
    began = rig.mark()
    time.sleep(draw.uniform(1, 10))
    rig.driver.kill()
    rig.wait_gone(120)
    server.become(backup)
    rig.forget(began)
    return True


def restart_mlflow(rig: Rig, draw: random.Random) -> bool:
    """It is killed, and comes back."""
    server = rig.tracking
    return _for_a_while(draw, lambda: server.send(signal.SIGKILL), server.start, most=10)


def hang_mlflow(rig: Rig, draw: random.Random) -> bool:
    """It takes connections, and answers none."""
    send = rig.tracking.send
    return _for_a_while(draw, lambda: send(signal.SIGSTOP), lambda: send(signal.SIGCONT), most=30)


def replace_mlflow(answer: Answer) -> Callable[[Rig, random.Random], bool]:
    """Something else answers in its place for a while."""

    def replace(rig: Rig, draw: random.Random) -> bool:
        with rig.tracking.replaced(answer):
            time.sleep(draw.uniform(2, 20))
        return True

    return replace
