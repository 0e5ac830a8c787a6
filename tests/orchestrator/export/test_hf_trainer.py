"""Export for Hugging Face's Trainer: training from its files, and plans that it refuses."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

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
        {"data": 1, "micro_batch": 4, "checkpoint_ratio": 0.5, "optimizer": "adamw_foreach"},
        {"checkpoint_ratio": 0.5, "batching": "grouped", "bucket_mib": 1},
        {"engine": "deepspeed", "zero_stage": 3, "checkpoint_ratio": 1.0},
    ],
    ids=str,
)
def test_trainer_gives_the_losses_of_a_plain_loop(knobs: dict[str, Any], tmp_path: Path) -> None:
    what = taken_of(a_plan(**knobs), grad_clip=CLIP)
    write_bundle(export_bundle(what, "hf-trainer"), what, tmp_path / "out")

    lines = run_folder(tmp_path / "out", steps=1 + STEPS)

    assert [line["step"] for line in lines] == list(range(1 + STEPS))
    losses = [line["loss"] for line in lines]
    assert losses == pytest.approx(losses_with_the_longest(CLIP)[: 1 + STEPS], rel=LOSS_TOLERANCE)


def on_cuda(**knobs: Any) -> dict[str, Any]:
    """Returns the arguments of a plan measured on GPUs."""
    what = replace(taken_of(a_plan(**knobs)), device="cuda")
    files = export_bundle(what, "hf-trainer").files
    told: dict[str, Any] = json.loads(files["training_arguments.json"])
    return told


def test_the_arguments_say_the_plan() -> None:
    ddp = on_cuda(micro_batch=2, bucket_mib=100, precision="bf16", checkpoint_ratio=1.0)
    assert ddp["per_device_train_batch_size"] == 2
    assert ddp["gradient_accumulation_steps"] == 2
    assert (ddp["ddp_bucket_cap_mb"], ddp["bf16"], ddp["fp16"]) == (100, True, False)
    assert ddp["gradient_checkpointing"] is True
    assert ddp["max_grad_norm"] == 0.0  # nothing: Trainer itself would clip to 1
    part = on_cuda(checkpoint_ratio=0.5)
    assert "gradient_checkpointing" not in part
    sharded = on_cuda(zero_stage=3, offload_optimizer="cpu", offload_parameters="cpu")
    assert sharded["fsdp"] is True
    assert sharded["fsdp_config"]["reshard_after_forward"] is True
    assert sharded["fsdp_config"]["cpu_offload"] is True
    assert on_cuda(zero_stage=2)["fsdp_config"]["reshard_after_forward"] is False
    zero = on_cuda(engine="deepspeed", zero_stage=2)
    assert zero["deepspeed"] == "ds_config.json"


def test_transformers_reads_the_arguments(tmp_path: Path) -> None:
    what = taken_of(a_plan(data=1, micro_batch=4), warmup_steps=3, schedule="cosine")
    file = tmp_path / "training_arguments.json"
    file.write_text(export_bundle(what, "hf-trainer").files[file.name])

    from transformers import HfArgumentParser, TrainingArguments  # with peft: a second

    (read,) = HfArgumentParser(TrainingArguments).parse_json_file(str(file))

    assert (read.per_device_train_batch_size, read.gradient_accumulation_steps) == (4, 2)
    assert (read.lr_scheduler_type.value, read.warmup_steps) == ("cosine", 3)
    assert read.optim.value == "adamw_torch_fused"


@pytest.mark.parametrize(
    ("knobs", "words"),
    [
        ({"batching": "packed"}, "batching is packed"),
        ({"zero_stage": 3}, "on a CPU accelerate silently replaces FSDP by DDP"),
        ({"compression": "powersgd"}, "compression is powersgd"),
        ({"optimizer": "adafactor"}, "optimizer is adafactor"),
        ({"tensor": 2, "data": 1}, "tensor is 2"),
    ],
)
def test_what_trainer_cannot_do_is_refused(knobs: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        export_bundle(taken_of(a_plan(**knobs)), "hf-trainer")
