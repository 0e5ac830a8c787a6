"""Faults that are injected into sweeps, by name; those of processes are here."""

import random
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import psutil

from benchmarks.chaos import storage_faults as storage
from benchmarks.chaos.rig import ACTORS, RANKS, Rig, send, signal_one, stopped
from benchmarks.chaos.settings import SETTINGS
from orchestrator.cli.exit_codes import ExitCode

Inject = Callable[[Rig, random.Random], bool]  # False: there was nothing to do it to
_REFUSED_SECONDS = 120.0  # in which a second driver has been refused
_ENDED_SECONDS = 60.0  # in which it has ended after a signal
_DESCRIPTORS = 40  # that a driver may open, of some 50 that it needs


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A kind of fault."""

    inject: Inject
    needs: tuple[str, ...] = SETTINGS  # one of which the sweep has to have


def _slow_rank(rig: Rig, draw: random.Random) -> bool:
    """One rank gets a fifth of its core for a while."""
    found = rig.processes(RANKS)
    if not found:
        return False
    rank, until = draw.choice(found), time.monotonic() + draw.uniform(3, 15)
    while time.monotonic() < until and send([rank], signal.SIGSTOP):
        time.sleep(0.08)
        send([rank], signal.SIGCONT)
        time.sleep(0.02)
    return True


def _kill_driver(rig: Rig, _: random.Random) -> bool:
    rig.driver.kill()
    return True


def _end_driver(rig: Rig, draw: random.Random) -> bool:
    if listens := rig.listens():
        rig.driver.send_signal(draw.choice((signal.SIGINT, signal.SIGTERM)))
    return listens


def _stop_driver(rig: Rig, draw: random.Random) -> bool:
    with stopped(psutil.Process(rig.driver.pid)):
        time.sleep(draw.uniform(2, 10))
    return True


def _few_descriptors(rig: Rig, _: random.Random) -> bool:
    """The driver is killed, and the next one may open few files."""
    rig.descriptors = _DESCRIPTORS
    rig.driver.kill()
    return True


def _second_driver(rig: Rig, _: random.Random) -> bool:
    """The same command is given once more, while the first driver lives and has the study."""
    if not rig.has_begun():
        return False
    second = rig.another_driver()
    until = time.monotonic() + _REFUSED_SECONDS
    while second.poll() is None and rig.driver.poll() is None and time.monotonic() < until:
        time.sleep(0.05)
    if second.poll() is None:  # the study may become its own
        second.terminate()
    try:
        code = second.wait(_ENDED_SECONDS)
    except subprocess.TimeoutExpired:
        second.kill()
        code = second.wait()
    if rig.driver.poll() is None and code not in (ExitCode.USER_ERROR, ExitCode.TRY_AGAIN):
        rig.troubles.append(f"a second driver ended with {code} while the first one had the study")
    return True


def _kill_head(rig: Rig, _: random.Random) -> bool:
    return send(rig.of_ray("gcs_server"), signal.SIGKILL) > 0


def _stop_for_a_while(name: str) -> Inject:
    def stop(rig: Rig, draw: random.Random) -> bool:
        found = rig.of_ray(name)
        if not found:
            return False
        with stopped(found[0]):
            time.sleep(draw.uniform(2, 40))
        return True

    return stop


def _order(name: str) -> Inject:
    def order(rig: Rig, draw: random.Random) -> bool:
        (rig.folder / "orders" / f"{name}-{draw.getrandbits(32):08x}.order").touch()
        return True

    return order


FAULTS: Mapping[str, Fault] = {
    "rank_killed": Fault(inject=partial(signal_one, signum=signal.SIGKILL, titles=RANKS)),
    "rank_stopped": Fault(inject=partial(signal_one, signum=signal.SIGSTOP, titles=RANKS)),
    "rank_slowed": Fault(inject=_slow_rank),
    "actor_killed": Fault(inject=partial(signal_one, signum=signal.SIGKILL, titles=ACTORS)),
    "actor_stopped": Fault(inject=partial(signal_one, signum=signal.SIGSTOP, titles=ACTORS)),
    "driver_killed": Fault(inject=_kill_driver),
    "driver_ended": Fault(inject=_end_driver),
    "driver_stopped": Fault(inject=_stop_driver),
    "second_driver": Fault(inject=_second_driver),
    "few_descriptors": Fault(inject=_few_descriptors),
    "head_killed": Fault(inject=_kill_head),
    "head_stopped": Fault(inject=_stop_for_a_while("gcs_server")),
    "raylet_stopped": Fault(inject=_stop_for_a_while("raylet")),
    "loss_is_nan": Fault(inject=_order("nan")),
    "past_the_budget": Fault(inject=_order("oom")),
    "memory_hog": Fault(inject=_order("hog")),
    "endless_loop": Fault(inject=_order("loop")),
    "model_raises": Fault(inject=_order("raise")),
    "sqlite_locked": Fault(inject=storage.lock_sqlite, needs=("sqlite",)),
    "records_damaged": Fault(inject=storage.damage_records, needs=("sqlite",)),
    "postgres_restarted": Fault(inject=storage.restart_postgres, needs=("postgres",)),
    "postgres_hangs": Fault(inject=storage.hang_postgres, needs=("postgres",)),
    "postgres_fails_over": Fault(inject=storage.fail_over_postgres, needs=("postgres",)),
    "postgres_restored": Fault(inject=storage.restore_postgres, needs=("postgres",)),
    "mlflow_restarted": Fault(inject=storage.restart_mlflow, needs=("mlflow",)),
    "mlflow_hangs": Fault(inject=storage.hang_mlflow, needs=("mlflow",)),
    "mlflow_fails": Fault(inject=storage.replace_mlflow("error"), needs=("mlflow",)),
    "mlflow_is_late": Fault(inject=storage.replace_mlflow("late"), needs=("mlflow",)),
    "mlflow_asks_to_log_in": Fault(inject=storage.replace_mlflow("login"), needs=("mlflow",)),
    "disk_full": Fault(inject=storage.fill_study_disk, needs=("disk",)),
    "temporary_disk_full": Fault(inject=storage.fill_temporary_disk, needs=("disk",)),
    "shared_memory_full": Fault(inject=storage.fill_shared_memory, needs=("disk",)),
    "no_inodes": Fault(inject=storage.use_up_inodes, needs=("disk",)),
    "disk_slow": Fault(inject=storage.slow_disk, needs=("machine",)),
    "disk_fails": Fault(inject=storage.failing_disk, needs=("machine",)),
    "clock_jumps": Fault(inject=storage.jump, needs=("machine",)),
    "power_lost": Fault(inject=storage.lose_power, needs=("machine",)),
}
