"""Export for Accelerate: training from its files, and plans that it refuses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from accelerate.commands.config.config_args import ClusterConfig

from orchestrator.export.bundle import write_bundle
from orchestrator.export.formats import export_bundle
from search_spaces.errors import UserError
from tests.orchestrator.export.folders import CLIP, STEPS, run_folder, taken_of
from tests.workers.test_same_training import LOSS_TOLERANCE, losses_with_the_longest
from tests.workers.values import a_plan


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize(
    "knobs",
    [
        {"checkpoint_ratio": 0.5, "batching": "packed", "bucket_mib": 1},
    ],
    ids=str,
)
def test_accelerate_gives_the_losses_of_a_plain_loop(knobs: dict[str, Any], tmp_path: Path) -> None:
    what = taken_of(a_plan(**knobs), grad_clip=CLIP)
    write_bundle(export_bundle(what, "accelerate"), what, tmp_path / "out")

    lines = run_folder(tmp_path / "out", steps=1 + STEPS)

    assert [line["step"] for line in lines] == list(range(1 + STEPS))
    losses = [line["loss"] for line in lines]
    assert losses == pytest.approx(losses_with_the_longest(CLIP)[: 1 + STEPS], rel=LOSS_TOLERANCE)


def configuration_of(folder: Path, *, device: str = "cuda", **knobs: Any) -> ClusterConfig:
    """Returns the file as Accelerate itself reads it."""
    what = replace(taken_of(a_plan(**knobs)), device=device)
    file = folder / "accelerate_config.yaml"
    file.write_text(export_bundle(what, "accelerate").files[file.name])
    config: ClusterConfig = ClusterConfig.from_yaml_file(str(file))
    return config


def test_accelerate_reads_the_configuration(tmp_path: Path) -> None:
    ddp = configuration_of(tmp_path, precision="bf16")
    assert (ddp.num_processes, ddp.mixed_precision) == (2, "bf16")
    assert ddp.distributed_type == "MULTI_GPU"
    sharded = configuration_of(tmp_path, zero_stage=3, data=4, replicas=2, micro_batch=1)
    assert sharded.distributed_type == "FSDP"
    assert sharded.fsdp_config["fsdp_version"] == 2
    assert sharded.fsdp_config["fsdp_reshard_after_forward"] is True
    sizes = sharded.parallelism_config
    assert sizes["parallelism_config_dp_replicate_size"] == 2
    assert sizes["parallelism_config_dp_shard_size"] == 2
    kept = configuration_of(tmp_path, zero_stage=2)
    assert kept.fsdp_config["fsdp_reshard_after_forward"] is False
    assert configuration_of(tmp_path, device="cpu", data=1).use_cpu is True


@pytest.mark.parametrize(
    ("knobs", "words"),
    [
        ({"zero_stage": 3}, "on a CPU accelerate silently replaces FSDP by DDP"),
        ({"precision": "fp16"}, "on a CPU accelerate silently trains in fp32"),
        ({"engine": "deepspeed", "zero_stage": 1}, "engine is deepspeed"),
        ({"compression": "bf16"}, "compression is bf16"),
        ({"pipeline": 2, "data": 1}, "pipeline is 2"),
    ],
)
def test_what_accelerate_cannot_do_is_refused(knobs: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        export_bundle(taken_of(a_plan(**knobs)), "accelerate")
