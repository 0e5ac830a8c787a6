"""A sweep on one of two kinds of nodes."""

from pathlib import Path

import pytest

from orchestrator.core.records import Record
from orchestrator.study.reader import load_records
from search_spaces.specification.load import load_spec
from search_spaces.specification.schema import SweepSpec
from search_spaces.trial import Measured
from tests.orchestrator.cluster.cli import plimsoll_in
from tests.orchestrator.cluster.where import where_model
from tests.rigs.ray_head import can_be_apart, ray_head, ray_node

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(
        not can_be_apart(), reason="nodes on one machine need mounts of their own (unshare --mount)"
    ),
]
SPEC = """
model: where_model:make
cluster:
  device: cpu
  workers: 1
  memory_gib: 0.5
  wait_minutes: 1
  accelerator: dear
train: {{global_batch: 16, sequence_length: 16, precision: fp32}}
space: {{micro_batch: [4, 8]}}
objective: {{max_seconds: 2, interval: 0.05, racing: false}}
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
        ray_head(folder, token=False, cpus=1, jobs=False) as environ,  # its own node is of no kind
        ray_node(environ, folder, "a", accelerator="cheap"),
        ray_node(environ, folder, "b", accelerator="dear"),
    ):
        ran = plimsoll_in(environ, "tune", "sweep.yaml", "--plain", folder=folder)
    log = ran.stdout + ran.stderr
    assert ran.returncode == 0, log
    spec = load_spec(folder / "sweep.yaml")
    return spec, list(load_records(spec, "sweep")), log


def test_every_plan_is_measured_on_the_node_of_its_kind(
    swept: tuple[SweepSpec, list[Record], str],
) -> None:
    spec, records, log = swept
    built = set((Path(spec.study.folder) / "nodes").read_text().split())

    assert {record.plan.micro_batch for record in records} == {4, 8}, log
    assert all(isinstance(record.outcome, Measured) for record in records)
    assert len(built - {str(Path("/proc/self/ns/mnt").readlink())}) == 1
    assert "nodes with other GPUs are not used: 2 (cheap, no name)" in log
