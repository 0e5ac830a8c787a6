"""Provenance from real git, the environment and the data."""

import subprocess
from pathlib import Path

import pytest

from orchestrator.tracking.mlflow_fields import job_context, source_tags
from orchestrator.tracking.provenance import code_version, provenance, run_context
from search_spaces.errors import StudyError
from search_spaces.facts import CodeVersion, Provenance

SECRET = "ghp-0123456789"


@pytest.fixture(autouse=True)
def _own_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hides this machine's git configuration, and repositories above the test's folder."""
    for name in ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM"):
        monkeypatch.setenv(name, "/dev/null")
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    for role in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{role}_NAME", "Ann")
        monkeypatch.setenv(f"GIT_{role}_EMAIL", "ann@example.com")


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    git(tmp_path, "init", "--initial-branch", "faster")
    (tmp_path / "train.py").write_text("print('loss')\n")
    git(tmp_path, "add", "train.py")
    git(tmp_path, "commit", "--message", "first")
    return tmp_path


def test_commit_branch_and_remote_of_a_folder_within_a_repository(repository: Path) -> None:
    git(repository, "remote", "add", "backup", "https://example.com/backup.git")
    git(repository, "remote", "add", "origin", "https://example.com/team/model.git")
    (repository / "runs").mkdir()

    assert code_version(repository / "runs") == CodeVersion(
        commit=git(repository, "rev-parse", "HEAD"),
        branch="faster",
        remote="https://example.com/team/model.git",
        modified=False,
    )


def test_changed_files_are_said_and_files_that_git_does_not_track_are_not(repository: Path) -> None:
    (repository / "mlflow.db").write_text("of a sweep")
    clean = code_version(repository)
    (repository / "train.py").write_text("print('less')\n")
    changed = code_version(repository)

    assert clean is not None
    assert changed is not None
    assert (clean.modified, changed.modified) == (False, True)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (f"https://ann:{SECRET}@example.com:8443/model.git", "https://example.com:8443/model.git"),
        (f"https://example.com/model.git?token={SECRET}", "https://example.com/model.git"),
        ("ssh://git@example.com/model.git", "ssh://example.com/model.git"),
        ("git@example.com:team/model.git", "git@example.com:team/model.git"),
        (f"https://ann:{SECRET}@[broken/model.git", "https://[broken/model.git"),
    ],
)
def test_the_address_of_the_repository_holds_no_credentials(
    url: str, shown: str, repository: Path
) -> None:
    git(repository, "config", "remote.origin.url", url)
    version = code_version(repository)

    assert version is not None
    assert version.remote == shown


def test_a_folder_without_a_commit_has_no_version(tmp_path: Path) -> None:
    assert code_version(tmp_path) is None
    git(tmp_path, "init")
    assert code_version(tmp_path) is None
    assert code_version(tmp_path / "missing") is None


def test_user_job_and_context_come_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RAY_JOB_CONFIG_JSON_ENV_VAR", "SLURM_JOB_ID", "MLFLOW_RUN_CONTEXT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "ann")
    here = provenance(None, tmp_path, at=1.0)
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}")
    monkeypatch.setenv("MLFLOW_RUN_CONTEXT", '{"team": "speed", "ticket": 7}')
    job = provenance(None, tmp_path, at=2.0)

    assert here == Provenance(at=1.0, user="ann", is_job=False, code=None)
    assert (job.is_job, job.context) == (True, (("team", "speed"), ("ticket", "7")))


@pytest.mark.parametrize("text", ["no json", "[1]", '"text"'])
def test_a_context_that_is_no_object_is_one_sentence(text: str) -> None:
    with pytest.raises(StudyError, match="MLFLOW_RUN_CONTEXT is not a JSON object of tags"):
        run_context(text)


def test_a_job_says_the_code_and_the_user_that_submitted_it(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job's folder is a copy without `.git`, and its user is another one."""
    code = code_version(repository)
    assert code is not None
    monkeypatch.setenv("MLFLOW_RUN_CONTEXT", job_context("ann", code, {"team": "speed"}))
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "ray")
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}")
    copy = tmp_path / "copy"
    copy.mkdir()
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    tags = source_tags(provenance(None, copy, at=1.0))

    assert tags == {
        "mlflow.source.name": "plimsoll",
        "mlflow.source.type": "JOB",
        "mlflow.source.git.commit": code.commit,
        "mlflow.source.git.branch": "faster",
        "mlflow.source.git.dirty": "false",
        "mlflow.user": "ann",
        "team": "speed",
    }
