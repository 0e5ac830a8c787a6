"""A sweep on a cluster without room, where Ray's autoscaler adds and removes nodes."""

import json
import subprocess
import time
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import combinations, groupby
from pathlib import Path

import pytest

from orchestrator.core.records import Record
from orchestrator.study.reader import load_records
from search_spaces.specification.load import load_spec
from search_spaces.trial import Measured
from tests.orchestrator.cluster.cli import plimsoll_in
from tests.rigs.ray_head import Brought, ray_head

pytestmark = pytest.mark.thorough
GONE_SECONDS = 600
# Two groups of one rank, on nodes with room for two: each group has a node to itself. One trial
# tells as much of nodes as more would, and starts one group.
SPEC = """
model: placed_model:make
cluster: {{device: cpu, workers: 1, groups: 2, memory_gib: 0.5, wait_minutes: 10}}
train: {{global_batch: 16, sequence_length: 16, precision: fp32}}
space: {{micro_batch: [1, 4], zero_stage: [0], optimizer: [adamw_fused]}}
objective: {{max_seconds: 2, interval: 0.0001, max_steps: 100000, racing: false}}
validation: {{enabled: false}}
budget: {{trials: 1}}
study: {{storage: "sqlite:///{folder}/study.db"}}
tracking: {{enabled: false}}
"""
# Tells where it is built, and with whom
MODEL = """
import os
import torch
from torch import nn

class Tiny(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        return self.layer(x).square().mean()

def make():
    if "RANK" in os.environ:
        import ray
        node = ray.get_runtime_context().get_node_id()
        group, size = os.environ["MASTER_PORT"], os.environ["WORLD_SIZE"]
        with open("{folder}/built", "a") as file:
            print(node, f"{{os.environ['MASTER_ADDR']}}:{{group}}", size, file=file)
    return Tiny(), lambda numbers: {{"x": torch.ones(len(numbers), 8)}}
"""


def overlap(one: Record, other: Record) -> bool:
    return one.started_at < other.ended_at and other.started_at < one.ended_at


def states(environ: dict[str, str]) -> Counter[str]:
    """Counts the states of all nodes, past ones included."""
    url = f"{environ['RAY_API_SERVER_ADDRESS']}/api/v0/nodes?detail=false"
    with urllib.request.urlopen(url, timeout=100) as answer:
        found = json.load(answer)["data"]["result"]["result"]
    return Counter(node["state"] for node in found if not node["is_head_node"])


@pytest.fixture(scope="module")
def environ(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Starts a head without room for a rank; its autoscaler may add one node more than needed.

    It has memory for one group.
    """
    folder = tmp_path_factory.mktemp("autoscaling")
    (folder / "placed_model.py").write_text(MODEL.format(folder=folder))
    (folder / "sweep.yaml").write_text(SPEC.format(folder=folder))
    brought = Brought(cpus=2, most=3)
    with ray_head(folder, token=False, cpus=0, memory_bytes=3 << 30, brought=brought) as environ:
        yield environ


@pytest.fixture(scope="module")
def folder(environ: dict[str, str]) -> Path:
    return Path(environ["HOME"])


def tune_from_nothing(
    name: str, folder: Path, environ: dict[str, str]
) -> tuple[subprocess.CompletedProcess[str], int]:
    """Runs a sweep while no node is up; returns how many nodes were added for it."""
    await_none(environ)
    before = states(environ).total()
    done = plimsoll_in(environ, "tune", name, "--plain", folder=folder)
    return done, states(environ).total() - before


def await_none(environ: dict[str, str]) -> None:
    until = time.monotonic() + GONE_SECONDS
    while "ALIVE" in (left := states(environ)):
        assert time.monotonic() < until, left
        time.sleep(1)


def test_a_sweep_waits_for_a_node_for_each_group(folder: Path, environ: dict[str, str]) -> None:
    """No node left and came back: idle nodes leave after eight seconds, and one is never used."""
    done, brought = tune_from_nothing("sweep.yaml", folder, environ)
    log = done.stdout + done.stderr

    assert done.returncode == 0, log
    assert "Waiting up to 10 minutes for room for 2 groups of 1 rank on separate nodes" in log
    assert "waits for room" not in log  # no node went, idle as it was before the first trial
    assert "was lost" not in log
    assert "cluster.groups is 2, but the head node has memory for 1: it may be killed" in log
    assert brought == 2
    (record,) = load_records(load_spec(folder / "sweep.yaml"), "sweep")
    assert isinstance(record.outcome, Measured)
    assert len({line.split()[0] for line in (folder / "built").read_text().splitlines()}) == 1


def test_groups_of_both_sizes_come_and_go_on_nodes_of_their_own(
    folder: Path, environ: dict[str, str]
) -> None:
    """No two groups overlap on a node: one has ended before the next one starts."""
    text = SPEC.replace("workers: 1", "workers: 2").replace("space: {{", "space: {{data: [1, 2], ")
    text = text.replace("trials: 1", "trials: 4")
    (folder / "sizes.yaml").write_text(text.format(folder=folder))
    (folder / "built").unlink(missing_ok=True)
    done, brought = tune_from_nothing("sizes.yaml", folder, environ)

    log = done.stdout + done.stderr
    assert done.returncode == 0, log
    assert "2 groups of 2 ranks" in log
    assert "waits for room" not in log
    assert brought == 2
    records = load_records(load_spec(folder / "sizes.yaml"), "sizes")
    assert Counter((r.plan.world_size, type(r.outcome)) for r in records) == {
        (1, Measured): 2,
        (2, Measured): 2,
    }
    assert any(overlap(*pair) for pair in combinations(records, 2))
    seen, sizes = defaultdict[str, list[str]](list), set()
    for line in (folder / "built").read_text().splitlines():
        node, group, size = line.split()
        seen[node].append(group)
        sizes.add(size)
    assert sizes == {"1", "2"}
    assert len(seen) == 2
    for groups in seen.values():
        turns = [group for group, _ in groupby(groups)]
        assert len(turns) == len(set(turns))
