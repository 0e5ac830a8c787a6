"""A cluster with Ray's own TLS: a sweep runs on it as on any other (S13)."""

import shutil
import socket
import ssl
import subprocess
from pathlib import Path
from socket import AF_INET

import psutil
import pytest

from search_spaces.trial import Measured
from tests.orchestrator.cluster.cli import plimsoll_in, write_sweep
from tests.orchestrator.cluster.test_machine_fails import outcomes_of
from tests.rigs.ray_head import ray_head

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(not shutil.which("openssl"), reason="needs openssl"),
]
TRIALS = 2
NEW_KEY = ("-newkey", "rsa:2048", "-nodes")


def openssl(folder: Path, *words: str) -> None:
    subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def certificates(tmp_path: Path) -> dict[str, str]:
    """The variables of a node whose certificate is for all addresses of this machine."""
    folder = tmp_path / "tls"
    folder.mkdir()
    authority = ("-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial")
    interfaces = psutil.net_if_addrs().values()
    addresses = [one.address for each in interfaces for one in each if one.family == AF_INET]
    names = ["DNS:localhost", *(f"IP:{address}" for address in addresses)]
    (folder / "names").write_text(f"subjectAltName={','.join(names)}\n")
    openssl(
        folder, "req", "-x509", *NEW_KEY, "-keyout", "ca.key", "-out", "ca.crt", "-subj", "/CN=ca"
    )
    openssl(folder, "req", *NEW_KEY, "-keyout", "node.key", "-out", "node.csr", "-subj", "/CN=node")
    signed = ("-in", "node.csr", "-extfile", "names", "-out", "node.crt")
    openssl(folder, "x509", "-req", *signed, *authority)
    return {
        "RAY_USE_TLS": "1",
        "RAY_TLS_SERVER_CERT": str(folder / "node.crt"),
        "RAY_TLS_SERVER_KEY": str(folder / "node.key"),
        "RAY_TLS_CA_CERT": str(folder / "ca.crt"),
    }


def test_s13_a_sweep_runs_on_a_cluster_with_rays_tls(
    certificates: dict[str, str], tmp_path: Path
) -> None:
    write_sweep(
        tmp_path / "sweep.yaml",
        space={"data": [2], "zero_stage": [0], "micro_batch": [1, 2], "checkpoint_ratio": [0.0]},
        objective={"max_steps": 12},
        study={"sampler": "random"},
        tracking={"enabled": False},
    )
    with ray_head(tmp_path, token=True, jobs=False, **certificates) as environ:
        host, port = environ["RAY_ADDRESS"].split(":")
        trusted = ssl.create_default_context(cafile=certificates["RAY_TLS_CA_CERT"])
        trusted.load_cert_chain(
            certificates["RAY_TLS_SERVER_CERT"], certificates["RAY_TLS_SERVER_KEY"]
        )
        with (
            socket.create_connection((host, int(port)), 20) as plain,
            trusted.wrap_socket(plain, server_hostname=host) as encrypted,
        ):
            assert encrypted.version() is not None
        asked = ("tune", "sweep.yaml", "--plain", "--trials", str(TRIALS))
        done = plimsoll_in(environ, *asked, folder=tmp_path)

    assert done.returncode == 0, done.stderr
    assert outcomes_of(tmp_path) == [Measured] * TRIALS
