"""A Slurm of one's own on this machine: two nodes of it, by Debian's slurm-wlm and munge."""

import contextlib
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rigs.ports import free_port
from tests.rigs.ray_head import kill

_START_SECONDS = 120
_CONF = """
ClusterName=test
SlurmctldHost={host}
SlurmctldPort={port}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
ReturnToService=2
NodeName=n0 NodeHostname={host} NodeAddr=127.0.0.1 Port={first} CPUs=8
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={second} CPUs=8
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


@contextlib.contextmanager
def slurm() -> Iterator[dict[str, str]]:
    """Starts the daemons; gives the environment in which Slurm's commands reach them.

    Skips the test where they are not installed, or not to be started.
    """
    if os.getuid() or not all(map(shutil.which, ("slurmctld", "slurmd", "munged", "sbatch"))):
        pytest.skip("needs root and Debian's slurm-wlm and munge")
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/tmp")))
        (folder / "key").write_bytes(secrets.token_bytes(128))
        (folder / "key").chmod(0o400)
        conf, host = folder / "slurm.conf", socket.gethostname().partition(".")[0]
        ports = {name: free_port() for name in ("port", "first", "second")}
        conf.write_text(_CONF.format(folder=folder, host=host, **ports))
        names = {"socket": "munge.sock", "key-file": "key", "pid-file": "munge.pid"}
        names |= {"log-file": "munge.log", "seed-file": "seed"}
        files = [f"--{option}={folder / name}" for option, name in names.items()]
        for words in (
            ["munged", "--foreground", "--force", *files],
            ["slurmctld", "-D", "-c", "-f", conf],
            *(["slurmd", "-D", "-N", node, "-f", conf] for node in ("n0", "n1")),
        ):
            log = stack.enter_context((folder / f"{words[0]}.out").open("ab"))
            daemon = subprocess.Popen(
                words, stdout=log, stderr=subprocess.STDOUT, cwd=folder, start_new_session=True
            )
            stack.callback(daemon.wait, 60)
            stack.callback(kill, daemon)
        environ = {"SLURM_CONF": str(conf)}
        ask = ["sinfo", "--noheader", "--format=%T %D"]
        until = time.monotonic() + _START_SECONDS
        while True:
            told = subprocess.run(
                ask, env=os.environ | environ, capture_output=True, text=True, check=False
            )
            if told.stdout.strip() == "idle 2":
                break
            if time.monotonic() > until:
                pytest.skip(f"Slurm does not start here: {told.stdout}{told.stderr}")
            time.sleep(0.5)
        yield environ
