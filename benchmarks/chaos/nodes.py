"""A cluster of two nodes on this machine: a head without room for ranks, and one to be lost.

Where the machine allows it, each has a network of its own, so that their link can be cut.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.rigs.hosts import Hosts, can_be_made, hosts
from tests.rigs.ray_head import LOCAL, kill, ray_head, ray_node

_HEAD, _SPOT = "head", "spot"
_NOTICE_SECONDS = 10.0  # between asking a node to end and ending it
_RANKS = 2
_TITLE = "ray::"  # begins the titles of a node's workers
_RAYS = (  # of which these are Ray's own, and stay
    *("ray::IDLE", "ray::DashboardAgent", "ray::RuntimeEnvAgent"),
    "ray::_AutoscalingCoordinatorActor",
)
_FREED_SECONDS = 60.0  # in which a cluster notices that a driver is gone
_LEFT = """
import json, ray
from ray.util import placement_group_table
from ray.util.state import list_actors

ray.init(address="auto", log_to_driver=False, logging_level="ERROR")
left = [
    f"placement group {group['placement_group_id']}"
    for group in placement_group_table().values()
    if group["state"] != "REMOVED"
]
total, free = ray.cluster_resources()["CPU"], ray.available_resources().get("CPU", 0)
left += [f"{total - free:g} CPUs"] if total != free else []
alive = [actor.class_name for actor in list_actors() if actor.state != "DEAD"]
left += [f"actor {name}" for name in alive if name != "_AutoscalingCoordinatorActor"]
print(json.dumps(left))
"""


@dataclass
class Nodes:
    """A head, and beside it one node at a time, where all ranks run."""

    folder: Path
    environ: Mapping[str, str]  # in which the cluster is reached
    net: Hosts | None  # None: both have this machine's network
    stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    node: subprocess.Popen[bytes] | None = None
    started: int = 0

    @property
    def inside(self) -> Sequence[str]:
        """Prefix of commands that run on the head."""
        return self.net.host(_HEAD).inside if self.net else ()

    def start(self) -> None:
        """Brings a node up; one that was lost has another name."""
        self.started += 1
        name = f"spot-{self.started}"
        host = self.net.host(_SPOT) if self.net else LOCAL
        self.node = self.stack.enter_context(
            ray_node(dict(self.environ), self.folder, name, cpus=_RANKS, host=host)
        )

    def preempt(self) -> None:
        """Asks the node to end, as the owner of a spot instance does, and ends it soon after."""
        assert self.node is not None
        self.node.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.node.wait(_NOTICE_SECONDS)
        kill(self.node)

    @contextlib.contextmanager
    def apart(self) -> Iterator[None]:
        """Cuts the link between head and node for the while."""
        assert self.net is not None
        self.net.cut(_SPOT)
        try:
            yield
        finally:
            self.net.join(_SPOT)

    def replace(self) -> None:
        """Ends the node, and starts another one."""
        assert self.node is not None
        kill(self.node)
        self.start()

    def lose(self) -> bool:
        """Kills the raylet of the node, and waits for the rest of the node to follow."""
        assert self.node is not None
        leader = psutil.Process(self.node.pid)
        raylets = [one for one in leader.children(recursive=True) if one.name() == "raylet"]
        for raylet in raylets:
            raylet.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.node.wait(30)
        kill(self.node)
        return bool(raylets)

    def is_own(self, process: psutil.Process) -> bool:
        """Returns whether a process is Ray's own, not one of what somebody runs there."""
        words = process.cmdline()
        title = " ".join(words)
        if title.startswith(_TITLE):
            return title.startswith(_RAYS)
        return "plimsoll" not in [Path(word).name for word in words[:2]]  # the driver

    def left(self) -> list[str]:
        """Returns what the cluster still holds though no driver is there."""
        until = time.monotonic() + _FREED_SECONDS
        while True:
            command = [*self.inside, sys.executable, "-c", _LEFT]
            asked = subprocess.run(
                command, env=self.environ, capture_output=True, text=True, check=True
            )
            left: list[str] = json.loads(asked.stdout.splitlines()[-1])
            if not left or time.monotonic() > until:
                return left
            time.sleep(2)


@contextlib.contextmanager
def two_nodes(folder: Path) -> Iterator[Nodes]:
    """The cluster for the length of the block."""
    path = str(Path(__file__).parents[2])
    home = folder / "nodes"
    home.mkdir()
    with contextlib.ExitStack() as stack:
        net = stack.enter_context(hosts(_HEAD, _SPOT)) if can_be_made() else None
        # gloo asks for the address of the host's name, which both nodes share
        interface = "eth0" if net else "lo"
        host = net.host(_HEAD) if net else LOCAL
        environ = stack.enter_context(
            ray_head(
                home, token=True, cpus=0, host=host, PYTHONPATH=path, GLOO_SOCKET_IFNAME=interface
            )
        )
        nodes = Nodes(home, environ, net)
        with nodes.stack:
            nodes.start()
            yield nodes
