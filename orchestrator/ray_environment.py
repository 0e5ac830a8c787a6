"""What Ray reads from the environment, and how processes get it.

Ray starts a process that is handed variables by way of another one, which takes a second of a core
and 1.5 s before the process begins; where Ray itself was started with them, all processes have them
anyway. Five of a sweep's processes, and four of each further group's, begin one after the other.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

# Read by Ray when it is imported or started, so they have to stand in the environment before.
_SETTINGS = {
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",  # a dead worker is noticed after that
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "120",
    "RAY_TRAIN_ENABLE_STATE_TRACKING": "0",
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",  # a process a group, for checkpoints we do not make
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_worker_niceness": "0",  # Ray's 15 starves workers beside anything that computes
    "RAY_DEDUP_LOGS": "0",
    "RAY_COLOR_PREFIX": "0",  # what Ray says of a dead worker goes into logs too
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # the study and MLflow hold what they would write
    "TUNE_GLOBAL_CHECKPOINT_S": "3600",  # the study is what a sweep resumes from
    "TUNE_RESULT_BUFFER_LENGTH": "0",
    "RAY_AIR_NEW_OUTPUT": "0",  # the old output has a mode that prints nothing
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # Ctrl-C is ours: it ends the sweep, with its report
}
WORKER_ENVIRONMENT = {
    # One heap for all threads: glibc tries another when one is full, and what a trial that ran out
    # of memory left in that does not come back.
    "MALLOC_ARENA_MAX": "1",
    # What is measured has the priority that the user's own training will have. Ray starts workers
    # with 15, where anything else that computes on the node leaves them 3 % of its cores.
    "RAY_worker_niceness": "0",
}
_HEAD = {
    # Ray's head lists 100,000 tasks unless it is told otherwise: 42 MiB after a thousand trials.
    "RAY_task_events_max_num_task_in_gcs": "10000",
}
_OWN = "PLIMSOLL_OWN_RAY"
RAY_LOGS_VARIABLE = "PLIMSOLL_RAY_LOGS"  # set by --debug


def settle_ray() -> None:
    """Says how Ray is to behave, before it is imported; what the user has set stays."""
    os.environ.pop(_OWN, None)
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)


def settle_own_ray() -> None:
    """Says it to a Ray that this process is about to start, and to all processes of that."""
    settle_ray()
    for name, value in (WORKER_ENVIRONMENT | _HEAD).items():
        os.environ.setdefault(name, value)
    os.environ[_OWN] = "1"


def shows_ray_logs() -> bool:
    """Tells whether Ray's own messages and those of its workers are shown."""
    return RAY_LOGS_VARIABLE in os.environ


def is_own_ray() -> bool:
    """Whether this process and all others of its Ray have the environment of a driver of ours."""
    return _OWN in os.environ


def to_hand_over(wanted: Mapping[str, str]) -> dict[str, str]:
    """What of an environment a process has to be handed, because it would not have it."""
    if not is_own_ray():
        return dict(wanted)
    return {name: value for name, value in wanted.items() if os.environ.get(name) != value}
