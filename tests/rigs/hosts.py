"""Hosts with their own addresses on one machine: network namespaces, with a bridge in another.

Nothing of the machine's own network is touched, and nothing leads out of these.
"""

import contextlib
import os
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from tests.rigs.ray_head import Host

_NET = "10.213.7"  # of no meaning elsewhere: the hosts alone know it


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


def can_be_made() -> bool:
    """Returns True if this machine allows network namespaces."""
    name = f"try{os.getpid()}"
    try:
        _ip("netns", "add", name)
        _ip("-n", name, "link", "add", "name", "bridge", "type", "bridge")
    except (FileNotFoundError, subprocess.CalledProcessError):
        return False
    finally:
        with contextlib.suppress(FileNotFoundError, subprocess.CalledProcessError):
            _ip("netns", "del", name)
    return True


@final
@dataclass(frozen=True)
class Hosts:
    """Hosts that reach each other, each by one link."""

    prefix: str
    names: Sequence[str]

    def host(self, name: str) -> Host:
        """Returns the host, with the prefix of commands that run on it."""
        address = f"{_NET}.{self.names.index(name) + 1}"
        return Host(address, ("ip", "netns", "exec", self.prefix + name))

    def runs(self, name: str, words: str) -> bool:
        """Returns True if a process with these words in its command runs on the host."""
        told = subprocess.run(
            ["ip", "netns", "pids", self.prefix + name], check=True, capture_output=True, text=True
        )
        commands = (Path("/proc", pid, "cmdline") for pid in told.stdout.split())
        return any(words.encode() in at.read_bytes() for at in commands if at.exists())

    def cut(self, name: str) -> None:
        """Takes the host's link down."""
        self._set_link(name, "down")

    def join(self, name: str) -> None:
        """Takes the host's link up again."""
        self._set_link(name, "up")

    def _set_link(self, name: str, state: str) -> None:
        _ip("-n", f"{self.prefix}hub", "link", "set", "dev", f"to-{name}", state)


@contextlib.contextmanager
def hosts(*names: str) -> Iterator[Hosts]:
    """Creates hosts with these short names."""
    prefix = f"pl{os.getpid()}"
    hub = f"{prefix}hub"
    made = Hosts(prefix, names)
    try:
        _ip("netns", "add", hub)
        _ip("-n", hub, "link", "add", "name", "bridge", "type", "bridge")
        _ip("-n", hub, "link", "set", "dev", "bridge", "up")
        for name in names:
            inside = prefix + name
            _ip("netns", "add", inside)
            peer = ("peer", "name", "eth0", "netns", inside)
            _ip("-n", hub, "link", "add", "name", f"to-{name}", "type", "veth", *peer)
            _ip("-n", hub, "link", "set", "dev", f"to-{name}", "master", "bridge", "up")
            address = f"{made.host(name).address}/24"
            _ip("-n", inside, "address", "add", address, "dev", "eth0")
            for device in ("lo", "eth0"):
                _ip("-n", inside, "link", "set", "dev", device, "up")
        yield made
    finally:
        for name in (*names, "hub"):
            with contextlib.suppress(subprocess.CalledProcessError):
                _ip("netns", "del", prefix + name)
