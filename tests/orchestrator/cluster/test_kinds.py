"""A sweep over two kinds of nodes, each with its own memory limit and price."""

from __future__ import annotations

import subprocess
from collections import defaultdict

import pytest

from benchmarks.rigs.ray_head import can_be_apart, ray_head, ray_node
from orchestrator.core.objective import Objective, best, memory_limit_of
from orchestrator.core.records import Record
from orchestrator.study.reader import load_records
from search_spaces.spec.load import load_spec
from search_spaces.spec.schema import SweepSpec
from search_spaces.trial import Measured
from tests.orchestrator.cluster.cli import PLIMSOLL
from tests.orchestrator.cluster.where import where_model

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(
        not can_be_apart(), reason="nodes on one machine need mounts of their own (unshare --mount)"
    ),
]
GIB = 2**30
# The machine is the same, so that the one that costs a tenth gives more for the price
SPEC = """
model: where_model:make
cluster:
  device: cpu
  workers: 1
  memory_gib: 0.5
  wait_minutes: 10
  accelerators: {{cheap: {{price_per_gpu_hour: 0.1}}, dear: {{memory_gib: 0.75}}}}
  price_per_gpu_hour: 1.0
train: {{global_batch: 16, sequence_length: 16, precision: fp32}}
space: {{micro_batch: [4, 8]}}
objective: {{metric: samples_per_price, max_seconds: 2, interval: 0.05, racing: false}}
validation: {{enabled: false}}
study: {{storage: "sqlite:///{folder}/study.db", folder: "{folder}"}}
tracking: {{enabled: false}}
"""


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> tuple[SweepSpec, list[Record], str]:
    """Specification, records and log."""
    folder = tmp_path_factory.mktemp("kinds")
    (folder / "where_model.py").write_text(where_model(folder))
    (folder / "sweep.yaml").write_text(SPEC.format(folder=folder))
    with (
        ray_head(
            folder, token=False, cpus=1, jobs=False
        ) as environ,  # the head's own node is of no kind
        ray_node(environ, folder, "a", accelerator="cheap"),
        ray_node(environ, folder, "b", accelerator="dear"),
    ):
        ran = subprocess.run(
            [PLIMSOLL, "tune", "sweep.yaml", "--plain"],
            cwd=folder,
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=800,
            check=False,
        )
    assert ran.returncode == 0, ran.stdout
    spec = load_spec(folder / "sweep.yaml")
    return spec, list(load_records(spec, "sweep")), ran.stdout


def test_every_plan_is_measured_on_both_kinds(
    swept: tuple[SweepSpec, list[Record], str],
) -> None:
    _, records, log = swept
    tried = {(record.plan.accelerator, record.plan.micro_batch) for record in records}

    assert tried == {(kind, micro) for kind in ("cheap", "dear") for micro in (4, 8)}, log
    assert all(isinstance(record.outcome, Measured) for record in records)


def test_each_kind_has_its_limit_and_its_price(
    swept: tuple[SweepSpec, list[Record], str],
) -> None:
    spec, records, log = swept
    limits = defaultdict(set)
    for record in records:
        limits[record.plan.accelerator].add(memory_limit_of(record))
    answer = best(records, Objective.of(spec))

    assert limits == {"cheap": {GIB // 2}, "dear": {GIB * 3 // 4}}
    assert answer is not None
    assert answer.plan.accelerator == "cheap"
    assert f"trial {answer.number} is best" in log
