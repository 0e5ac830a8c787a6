"""Jobs of a sweep: their ids, the active one, and endings after which another job may follow."""

import shlex
from dataclasses import replace

import pytest

from orchestrator.cluster.jobs import (
    DEFAULT_EXCLUDES,
    STUDY,
    Job,
    active_job,
    can_resume,
    entrypoint,
    exit_code,
    job_id,
)

RUNNING = Job(id="plimsoll-a", status="running", metadata=((STUDY, "a"),))


def test_the_command_survives_the_shell_that_runs_it() -> None:
    command = entrypoint("my sweeps/$HOME;ls.yaml", {"trials": 3, "minutes": None})

    words = shlex.split(command)
    assert words == ["plimsoll", "tune", "my sweeps/$HOME;ls.yaml", "--plain", "--trials", "3"]


def test_options_are_repeated_and_switches_have_no_value() -> None:
    command = entrypoint("a.yaml", {"set": ("train.x=[1, 2]", "b=c"), "debug": True, "no": None})

    assert shlex.split(command)[3:] == [
        *("--plain", "--set", "train.x=[1, 2]", "--set", "b=c", "--debug")
    ]


def test_each_job_of_a_study_has_a_name_of_its_own() -> None:
    first, others = replace(RUNNING, id="plimsoll-a"), replace(RUNNING, id="raysubmit_x")

    assert job_id("a", []) == job_id("a", [others]) == "plimsoll-a"
    assert job_id("a", [first, others]) == "plimsoll-a-2"
    assert job_id("a", [first, replace(first, id="plimsoll-a-2")]) == "plimsoll-a-3"


def test_a_study_is_left_to_the_job_that_runs_it() -> None:
    ended = [replace(RUNNING, status=status) for status in ("stopped", "succeeded", "failed")]
    waiting = replace(RUNNING, id="plimsoll-a-2", status="pending", started_at=2.0)

    assert active_job("a", ended) is None
    assert active_job("b", [RUNNING]) is None
    assert active_job("a", [*ended, RUNNING]) == RUNNING
    assert active_job("a", [waiting, RUNNING]) == waiting
    assert active_job("a", [replace(RUNNING, metadata=())]) is None


@pytest.mark.parametrize(
    ("status", "code", "dead", "told"),
    [
        ("succeeded", 0, False, 0),
        ("failed", 2, False, 2),  # the specification is at fault
        ("failed", 75, True, 75),  # machines failed
        ("failed", 15, True, 15),  # SIGTERM, by Ray's own handler
        ("failed", -9, True, 1),
        ("failed", None, True, 1),  # its node was lost
        ("stopped", 143, False, 143),  # somebody wanted that
    ],
)
def test_only_what_died_is_followed_by_another(
    status: str, code: int | None, dead: bool, told: int
) -> None:
    job = replace(RUNNING, status=status, exit_code=code)

    assert can_resume(job) is dead
    assert exit_code(job) == told


def test_s15_keys_and_passwords_are_not_uploaded() -> None:
    from ray._private.thirdparty.pathspec import PathSpec  # as Ray reads the patterns

    excluded = PathSpec.from_lines("gitwildmatch", DEFAULT_EXCLUDES)
    secrets = (
        *(".env", ".env.production", "config/.env", ".netrc", "deploy/server.pem", "tls.key"),
        *("id_rsa", ".ssh/id_ed25519", ".aws/credentials", ".kube/config", ".git-credentials"),
    )
    needed = ("sweep.yaml", "model.py", "id_map.json", "data/keys.txt", "environment.yml", "env.py")

    assert [name for name in secrets if not excluded.match_file(name)] == []
    assert [name for name in needed if excluded.match_file(name)] == []
