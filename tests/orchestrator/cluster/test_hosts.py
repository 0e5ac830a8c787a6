"""Plans over several hosts, each with its own address; one link is cut during a trial."""

from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest

from orchestrator.study.reader import load_records
from search_spaces.specification.load import load_spec
from search_spaces.trial import Measured
from tests.orchestrator.cluster.cli import submitted
from tests.rigs.hosts import can_be_made, hosts
from tests.rigs.ray_head import can_be_apart, ray_head, ray_node

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.timeout(1800),  # four ranks start three times, on as many cores as there are
    pytest.mark.skipif(
        not (can_be_apart() and can_be_made()),
        reason="hosts on one machine need network namespaces and mounts of their own (root)",
    ),
]
SPEC = """
model:
  name: llama-3.2-1b
  config: {{hidden_size: 64, intermediate_size: 128, num_hidden_layers: 2, num_attention_heads: 4,
    num_key_value_heads: 2, head_dim: 16, vocab_size: 256}}
cluster: {{device: cpu, workers: 4, memory_gib: 0.5}}
train: {{global_batch: 8, sequence_length: 32, precision: fp32}}
space: {{tensor: [2], pipeline: [1], zero_stage: [0], micro_batch: [2],
  checkpoint_ratio: [0.0], attention: [sdpa], batching: [padded], engine: [torch]}}
objective: {{max_seconds: 4, interval: 0.001, max_steps: 100000, racing: false}}
validation: {{enabled: false}}
study: {{storage: "sqlite:///{folder}/study.db"}}
tracking: {{enabled: false}}
"""


def test_tensor_and_data_ranks_span_hosts_and_a_cut_link_costs_one_trial(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "sweep.yaml").write_text(SPEC.format(folder=tmp_path))
    # gloo asks for the address of the host's name, which all of these share
    interface = {"GLOO_SOCKET_IFNAME": "eth0"}
    with ExitStack() as stack:
        net = stack.enter_context(hosts("head", "a", "b", "c"))
        head = net.host("head")
        environ = stack.enter_context(
            ray_head(tmp_path, token=True, cpus=0, host=head, **interface)
        )
        for name in ("a", "b", "c"):
            stack.enter_context(ray_node(environ, tmp_path, name, cpus=2, host=net.host(name)))

        def cut() -> None:
            lost.append(next(name for name in "abc" if net.runs(name, "ray::RayTrainWorker")))
            net.cut(lost[0])

        lost = list[str]()
        log, code = submitted(
            work, environ, at=lambda log: "trial 1 starts" in log, do=cut, inside=head.inside
        )

    assert code == 0, log
    assert f"node {lost[0]} was lost during trial 1" in log
    records = load_records(load_spec(work / "sweep.yaml"), "sweep")
    assert Counter(type(record.outcome) for record in records) == {Measured: 2}, log
    for record in records:
        assert record.plan.world_size == 4
        assert record.fingerprint is not None
        assert record.fingerprint.hosts == 2
