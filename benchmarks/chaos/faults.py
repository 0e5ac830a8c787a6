"""What is done to sweeps, by name."""

from __future__ import annotations

import random
import shutil
import signal
import sqlite3
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import psutil

from benchmarks.chaos.rig import ACTORS, RANKS, Rig, send, stopped

Inject = Callable[[Rig, random.Random], bool]  # False: there was nothing to do it to
SPARE_BYTES = 32 << 10  # left on a disk that is "full"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A kind of fault. `ends`: a result that is on its way may go with what is ended."""

    inject: Inject
    ends: bool = False
    needs: str = ""  # what the sweep must have for it


def _kill_rank(rig: Rig, draw: random.Random) -> bool:
    return _signal_one(rig, draw, signal.SIGKILL, RANKS)


def _stop_rank(rig: Rig, draw: random.Random) -> bool:
    return _signal_one(rig, draw, signal.SIGSTOP, RANKS)


def _kill_actor(rig: Rig, draw: random.Random) -> bool:
    return _signal_one(rig, draw, signal.SIGKILL, *ACTORS)


def _stop_actor(rig: Rig, draw: random.Random) -> bool:
    return _signal_one(rig, draw, signal.SIGSTOP, *ACTORS)


def _kill_driver(rig: Rig, _: random.Random) -> bool:
    rig.driver.kill()
    return True


def _end_driver(rig: Rig, draw: random.Random) -> bool:
    rig.driver.send_signal(draw.choice((signal.SIGINT, signal.SIGTERM)))
    return True


def _stop_driver(rig: Rig, draw: random.Random) -> bool:
    with stopped(psutil.Process(rig.driver.pid)):
        time.sleep(draw.uniform(2, 10))
    return True


def _signal_one(rig: Rig, draw: random.Random, signum: signal.Signals, *titles: str) -> bool:
    found = rig.processes(*titles)
    return bool(found) and send([draw.choice(found)], signum) > 0


def _order(name: str) -> Inject:
    def order(rig: Rig, draw: random.Random) -> bool:
        orders = rig.folder / "orders"
        orders.mkdir(exist_ok=True)
        (orders / f"{name}-{draw.getrandbits(32):08x}.order").touch()
        return True

    return order


def _lock_sqlite(rig: Rig, draw: random.Random) -> bool:
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


def _fill_disk(rig: Rig, draw: random.Random) -> bool:
    """The study's disk has no room for a while."""
    disk = rig.folder / "disk"
    filler = disk / "filler"
    free = shutil.disk_usage(disk).free - SPARE_BYTES
    with filler.open("wb") as file:
        file.write(b"\0" * max(free, 0))
    time.sleep(draw.uniform(1, 12))
    filler.unlink()
    return True


def _restart_postgres(rig: Rig, draw: random.Random) -> bool:
    """It ends, which cuts all connections, and comes back."""
    server = rig.setting.postgres
    assert server is not None
    server.stop()
    time.sleep(draw.uniform(0, 10))
    server.start()
    return True


def _hang_postgres(rig: Rig, draw: random.Random) -> bool:
    """It takes what is sent, and answers nothing."""
    server = rig.setting.postgres
    assert server is not None
    server.suspend()
    time.sleep(draw.uniform(2, 30))
    server.resume()
    return True


def _lose_node(rig: Rig, draw: random.Random) -> bool:
    """A raylet is killed, and some time later there is another node."""
    nodes = rig.setting.nodes
    assert nodes is not None
    lost = nodes.lose()
    time.sleep(draw.uniform(0, 10))
    nodes.start()
    return lost


def _restart_mlflow(rig: Rig, draw: random.Random) -> bool:
    server = rig.setting.tracking
    assert server is not None
    server.send(signal.SIGKILL)
    time.sleep(draw.uniform(0, 10))
    server.start()
    return True


def _hang_mlflow(rig: Rig, draw: random.Random) -> bool:
    """It takes connections, and answers none."""
    server = rig.setting.tracking
    assert server is not None
    server.send(signal.SIGSTOP)
    time.sleep(draw.uniform(2, 30))
    server.send(signal.SIGCONT)
    return True


FAULTS: Mapping[str, Fault] = {
    "rank_killed": Fault(inject=_kill_rank, ends=True),
    "rank_stopped": Fault(inject=_stop_rank, ends=True),
    "actor_killed": Fault(inject=_kill_actor, ends=True),
    "actor_stopped": Fault(inject=_stop_actor, ends=True),
    "driver_killed": Fault(inject=_kill_driver, ends=True),
    "driver_ended": Fault(inject=_end_driver, ends=True),
    "driver_stopped": Fault(inject=_stop_driver),
    "loss_is_nan": Fault(inject=_order("nan")),
    "past_the_budget": Fault(inject=_order("oom")),
    "memory_hog": Fault(inject=_order("hog")),
    "endless_loop": Fault(inject=_order("loop")),
    "model_raises": Fault(inject=_order("raise")),
    "sqlite_locked": Fault(inject=_lock_sqlite, needs="sqlite"),
    "postgres_restarted": Fault(inject=_restart_postgres, needs="postgres"),
    "postgres_hangs": Fault(inject=_hang_postgres, needs="postgres"),
    "raylet_killed": Fault(inject=_lose_node, ends=True, needs="nodes"),
    "mlflow_restarted": Fault(inject=_restart_mlflow, needs="mlflow"),
    "mlflow_hangs": Fault(inject=_hang_mlflow, needs="mlflow"),
    "disk_full": Fault(inject=_fill_disk, needs="disk"),
}
