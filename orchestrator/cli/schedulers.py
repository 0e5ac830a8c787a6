"""Sends the job files of sweeps to Slurm, SkyPilot and KubeRay, and follows their logs."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, NoReturn

import typer

from orchestrator.cli.console import print_error, print_line
from orchestrator.cli.exit_codes import ExitCode
from orchestrator.cluster.slurm import follow_job, queued_job, submit_script
from orchestrator.report.terminal import log_without_controls
from search_spaces.errors import UserError
from search_spaces.safety.files import packaged_table

if TYPE_CHECKING:
    from orchestrator.export.cluster_job import ClusterJob

_SENDERS = packaged_table(__package__, "senders.yaml")


def send_to_slurm(job: ClusterJob, script: str, folder: Path, *, follow: bool) -> None:
    """Queues a sweep, or finds its job in the queue, and shows the log until it ends."""
    if number := queued_job(job.name, folder):
        print_line(f"Job {number} is already in Slurm's queue; not submitting another.")
    else:
        number = submit_script(script, folder, dict(job.environment))
        print_line(f"Job {number} submitted to Slurm: {job.command}")
    log = folder / f"{job.name}-{number}.log"
    if not follow:
        print_line(f"Follow it: tail -f {log}. Stop it: scancel {number}.")
        return
    try:
        state, code = follow_job(number, log, write_log)
    except KeyboardInterrupt:
        detach(f"scancel {number}")
    if code:
        print_error(f"Job {number} ended in Slurm: {state}, with exit code {code}.")
        raise typer.Exit(code)


def send_file(target: str, job: ClusterJob, text: str) -> None:
    """Hands a job's file to the command of SkyPilot or Kubernetes, and shows what it prints.

    Raises:
        UserError: If there is no such command here.
    """
    command, advice = (words.format(name=job.name) for words in _SENDERS[target])
    words = command.split()
    env = os.environ | {"RAY_AUTH_TOKEN": token_hex(32)}  # of the Ray that SkyPilot's task starts
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch, "job.yaml")
        file.write_text(text)
        try:
            done = subprocess.run([*words, str(file)], env=env, check=False)
        except FileNotFoundError:
            raise UserError(
                f"there is no {words[0]} in the path: install it, or use --dry-run and take the"
                " file to where it is"
            ) from None
    if done.returncode:
        raise typer.Exit(done.returncode)
    print_line(advice)


def write_log(text: str) -> None:
    """Writes a piece of a job's log to stdout, without control sequences."""
    sys.stdout.write(log_without_controls(text))
    sys.stdout.flush()


def detach(ends: str) -> NoReturn:
    """Leaves a job alone after Ctrl-C; `ends` is the command that would end it."""
    print_error(f"The job keeps running. Repeat this command to follow it again; `{ends}` ends it.")
    raise typer.Exit(ExitCode.INTERRUPTED) from None
