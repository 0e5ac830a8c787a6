"""A cluster of two nodes on this machine: a head without room for ranks, and one to be lost."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from benchmarks.rigs.ray_head import kill, ray_head, ray_node

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
    stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    node: subprocess.Popen[bytes] | None = None
    started: int = 0

    def start(self) -> None:
        """Brings a node up; one that was lost has another name."""
        self.started += 1
        name = f"spot-{self.started}"
        self.node = self.stack.enter_context(
            ray_node(dict(self.environ), self.folder, name, cpus=_RANKS)
        )

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
        """Whether a process is Ray's, and not of what somebody runs there."""
        words = process.cmdline()
        title = " ".join(words)
        if title.startswith(_TITLE):
            return title.startswith(_RAYS)
        return "plimsoll" not in [Path(word).name for word in words[:2]]  # the driver

    def left(self) -> list[str]:
        """What the cluster still holds though no driver is there."""
        until = time.monotonic() + _FREED_SECONDS
        while True:
            command = [sys.executable, "-c", _LEFT]
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
    with ray_head(home, token=True, cpus=0, PYTHONPATH=path) as environ:
        nodes = Nodes(home, environ)
        with nodes.stack:
            nodes.start()
            yield nodes
