"""Provenance of a sweep: its user, the version of the code, and the data."""

import getpass
import json
import os
import re
import subprocess
from pathlib import Path

from search_spaces.errors import StudyError
from search_spaces.facts import CodeVersion, DataProfile, Provenance

CONTEXT_VARIABLE = "MLFLOW_RUN_CONTEXT"  # MLflow's: a JSON object of tags
_USER_VARIABLE = "MLFLOW_TRACKING_USERNAME"  # the user by MLflow's own client
_JOB_VARIABLES = ("RAY_JOB_CONFIG_JSON_ENV_VAR", "SLURM_JOB_ID")  # set by the schedulers
_GIT_SECONDS = 10.0


def provenance(data: DataProfile | None, folder: Path, *, at: float) -> Provenance:
    """Collects the provenance of a sweep that this process drives.

    Args:
        data: The data; None for a model that makes its own batches.
        folder: Folder of the user's code.
        at: The time, in seconds since the epoch.

    Raises:
        StudyError: If `MLFLOW_RUN_CONTEXT` is not a JSON object.
    """
    return Provenance(
        at=at,
        user=user(),
        is_job=any(os.environ.get(name) for name in _JOB_VARIABLES),
        code=code_version(folder),
        context=run_context(os.environ.get(CONTEXT_VARIABLE, "")),
        data=data,
    )


def user() -> str:
    """Returns the user's name for MLflow."""
    try:
        return os.environ.get(_USER_VARIABLE) or getpass.getuser()
    except (KeyError, OSError):  # a container's user id may have no name
        return "unknown"


def run_context(text: str) -> tuple[tuple[str, str], ...]:
    """Parses the tags of `MLFLOW_RUN_CONTEXT`; empty for an empty text.

    Raises:
        StudyError: If the text is not a JSON object.
    """
    if not text:
        return ()
    try:
        tags = json.loads(text)
    except ValueError:
        tags = None
    if not isinstance(tags, dict):
        raise StudyError(
            f"{CONTEXT_VARIABLE} is not a JSON object of tags: write it as"
            ' {"mlflow.source.git.commit": "..."}, or unset it'
        )
    return tuple((str(name), str(value)) for name, value in tags.items())


def code_version(folder: Path) -> CodeVersion | None:
    """Returns the commit of a folder.

    Returns None outside a repository, before its first commit, and if git is missing or does not
    answer in time.
    """
    try:
        status = _git(folder, "status", "--porcelain=v2", "--branch", "--untracked-files=no")
        remotes = _git(folder, "config", "--get-regexp", r"^remote\..*\.url$", accept=(0, 1))
    except (OSError, subprocess.SubprocessError):
        return None
    headers = dict(
        line.removeprefix("# ").split(" ", 1) for line in status if line.startswith("# ")
    )
    commit, branch = headers.get("branch.oid", "("), headers.get("branch.head", "(")
    if commit.startswith("("):  # "(initial)": no commit yet
        return None
    urls = dict(line.split(" ", 1) for line in remotes if " " in line)
    first = next(iter(urls.values()), "")
    return CodeVersion(
        commit=commit,
        branch="" if branch.startswith("(") else branch,  # "(detached)"
        remote=_public(urls.get("remote.origin.url", first)),
        modified=any(not line.startswith("#") for line in status),
    )


def _git(folder: Path, *arguments: str, accept: tuple[int, ...] = (0,)) -> list[str]:
    process = subprocess.run(
        ["git", "-C", str(folder), *arguments],
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        timeout=_GIT_SECONDS,
        env={**os.environ, "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"},
        check=False,
    )
    if process.returncode not in accept:
        raise subprocess.CalledProcessError(process.returncode, process.args)
    return process.stdout.splitlines()


def _public(url: str) -> str:
    """The address of a repository without user, password, query and fragment.

    Each of them may be a token. `git@host:path` has none.
    """
    return re.sub(r"://(?:[^/?#]*@)?([^?#]*).*", r"://\1", url)
