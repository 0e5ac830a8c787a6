"""Nodes with TPUs, as Ray counts and labels them: where ranks go, and a sweep without torch_tpu."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cluster.nodes import RayNodes
from search_spaces.specification.sections import ClusterSpec
from tests.commands import run_command
from tests.orchestrator.cluster.cli import plimsoll_in
from tests.rigs.ray_head import ray_head

ROOT = Path(__file__).parents[3]
# what GKE sets on the second host of a slice, and how many devices Ray would find there
HOST = {
    "TPU_NAME": "slice-a",
    "TPU_WORKER_ID": "1",
    "TPU_TOPOLOGY": "2x2x2",
    "TPU_ACCELERATOR_TYPE": "v5p-16",
    "RAY_OVERRIDE_RESOURCES": '{"TPU": 4}',
}
SPEC = """
model: gpt2
cluster: {device: tpu, workers: 2, wait_minutes: 0}
train: {global_batch: 4, sequence_length: 16}
tracking: {enabled: false}
"""
_NODES = "import json, ray; ray.init(log_to_driver=False); print(json.dumps(ray.nodes()))"


def up(nodes: list[dict[str, Any]], device: str, cpus: int = 1) -> list[tuple[str, int, str, str]]:
    """Returns name, slots, kind and slice of the nodes that have room for ranks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ray.nodes", lambda: nodes)
        cluster = ClusterSpec(device=device, cpus_per_worker=cpus)  # type: ignore[arg-type]
        found = RayNodes(device, cluster, joined=False).all_up()
    return [(node.name, node.slots, node.kind, node.slice) for node in found]


def a_node(name: str, tpus: float, **labels: str) -> dict[str, Any]:
    labels = {f"ray.io/tpu-{key.replace('_', '-')}": value for key, value in labels.items()}
    return {
        "NodeID": name,
        "NodeName": name,
        "Alive": True,
        "NodeManagerAddress": "10.0.0.1",
        "NodeManagerPort": 1,
        "Resources": {"CPU": 200.0} | ({"TPU": tpus} if tpus else {}),
        "Labels": labels,
    }


def test_a_rank_takes_a_tpu_and_hosts_stand_in_the_order_of_their_slice() -> None:
    nodes = [a_node("b", 4, slice_name="s", worker_id="10"), a_node("head", 0)]
    nodes.append(a_node("a", 4, slice_name="s", worker_id="9"))

    assert up(nodes, "tpu") == [("a", 4, "", "s"), ("b", 4, "", "s")]
    assert up(nodes, "tpu", cpus=100) == [("a", 2, "", "s"), ("b", 2, "", "s")]
    assert up(nodes, "cuda") == []


@pytest.mark.thorough
@pytest.mark.slow
def test_rays_own_node_is_one_of_a_slice_and_a_sweep_names_what_it_lacks(tmp_path: Path) -> None:
    (tmp_path / "sweep.yaml").write_text(SPEC)
    with ray_head(
        tmp_path, token=False, cpus=4, jobs=False, PYTHONPATH=str(ROOT), **HOST
    ) as environ:
        listed = run_command([sys.executable, "-c", _NODES], environment=environ, seconds=600)
        ran = plimsoll_in(environ, "tune", "sweep.yaml", "--plain", folder=tmp_path)
    ((_, slots, kind, name),) = up(json.loads(listed.stdout), "tpu")

    assert (slots, kind, name) == (4, "TPU-V5P", "slice-a")
    assert ran.returncode == 2, ran.stderr
    assert "cluster.device is tpu, but torch_tpu is not installed" in ran.stderr
    assert "pip install 'plimsoll-tune[tpu]'" in " ".join(ran.stderr.split())
