"""A sweep on a cluster of several nodes, as a job with token authentication; one node is killed."""

import re
from collections import Counter
from itertools import combinations
from pathlib import Path

import pytest

from orchestrator.core.records import Record
from orchestrator.study.reader import load_records
from search_spaces.specification.load import load_spec
from search_spaces.trial import Measured
from tests.orchestrator.cluster.cli import submitted
from tests.orchestrator.cluster.where import where_model
from tests.rigs.ray_head import can_be_apart, kill, ray_head, ray_node

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(
        not can_be_apart(), reason="nodes on one machine need mounts of their own (unshare --mount)"
    ),
]
PLANS = 12
# The head has no room for a rank; each group has a node to itself, and nobody says how many
SPEC = """
model: where_model:make
cluster: {{device: cpu, workers: 1, memory_gib: 0.5}}
train: {{global_batch: 16, sequence_length: 16}}
space: {{micro_batch: [1, 2, 4], optimizer: [adamw_fused, adamw_foreach], precision: [fp32, bf16]}}
objective: {{max_seconds: 4, interval: 0.0001, max_steps: 100000, racing: false}}
validation: {{enabled: false}}
study: {{storage: "sqlite:///{folder}/study.db"}}
tracking: {{enabled: false}}
"""


def overlap(one: Record, other: Record) -> bool:
    return one.started_at < other.ended_at and other.started_at < one.ended_at


def two_have_ended_and_two_run(log: str) -> bool:
    """Returns True if two trials that ran side by side have ended, and two more run so."""
    running, beside, ended = set[str](), set[frozenset[str]](), set[str]()
    for trial, step in re.findall(r"trial (\d+) (starts|ended):", log):
        if step == "starts":
            running.add(trial)
        else:
            running.remove(trial)
            ended.add(trial)
        beside |= {frozenset(pair) for pair in combinations(running, 2)}
    return len(running) == 2 and any(pair <= ended for pair in beside)


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Folder of a study in which a late trial lost its node, and the log."""
    folder = tmp_path_factory.mktemp("nodes")
    work = folder / "work"
    work.mkdir()
    (work / "where_model.py").write_text(where_model(folder))
    (work / "sweep.yaml").write_text(SPEC.format(folder=folder))
    with (
        ray_head(folder, token=True, cpus=0) as environ,
        ray_node(environ, folder, "first"),
        ray_node(environ, folder, "second") as second,
    ):
        log, code = submitted(work, environ, at=two_have_ended_and_two_run, do=lambda: kill(second))
    assert code == 0, log
    return folder, log


def test_all_plans_are_measured_side_by_side_though_a_node_was_killed(
    swept: tuple[Path, str],
) -> None:
    folder, log = swept
    records = load_records(load_spec(folder / "work" / "sweep.yaml"), "sweep")

    assert Counter(type(record.outcome) for record in records) == {Measured: PLANS}
    assert len({record.plan for record in records}) == PLANS
    assert log.count("node second was lost during trial") >= 1
    assert "Best plans" in log

    built = set((folder / "nodes").read_text().split())
    assert len(built - {str(Path("/proc/self/ns/mnt").readlink())}) == 2  # beside the head
    assert any(overlap(*pair) for pair in combinations(records, 2))
    for three in combinations(records, 3):
        assert not all(overlap(*pair) for pair in combinations(three, 2))
