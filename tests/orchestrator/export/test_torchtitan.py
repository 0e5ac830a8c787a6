"""Export for torchtitan: the fields and values of its TOML, and its parser if it is installed.

torchtitan is not a dependency of the tests, because it imports triton (1 GB). Its fields are
recorded in a file next to this one; `python -m pip install torchtitan==0.2.2` runs the rest.
"""

from __future__ import annotations

import dataclasses
import json
import tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import TypeAdapter
from torch.distributed.pipelining.schedules import get_schedule_class

from orchestrator.export.formats import FORMATS, export_bundle
from orchestrator.export.source import ExportSource
from orchestrator.export.torchtitan import VERSION, every_nth
from search_spaces.errors import UserError
from search_spaces.plan import CHOICES, Schedule
from search_spaces.settings.blocks import checkpointed_blocks, evenly_spaced
from tests.orchestrator.export.folders import taken_of
from tests.workers.values import a_plan

FIELDS = json.loads(Path(__file__).with_name("torchtitan_fields.json").read_text())
STEEP = {"schedule": "cosine", "warmup_steps": 3, "total_steps": 9, "grad_clip": 1.0}


def on_a_flavor(what: ExportSource, name: str, blocks: int) -> ExportSource:
    """Returns the source as if a preset with a flavor in torchtitan had been measured."""
    model = what.spec.model.model_copy(update={"name": name, "config": {}})
    facts = dataclasses.replace(what.model, blocks=blocks, block_parameters=(1,) * blocks)
    return dataclasses.replace(
        what, spec=what.spec.model_copy(update={"model": model}), model=facts
    )


def for_task(task: str) -> ExportSource:
    """Returns the source as if a model for a task had been measured."""
    what = taken_of(a_plan())
    model = what.spec.model.model_copy(update={"task": task})
    return dataclasses.replace(what, spec=what.spec.model_copy(update={"model": model}))


HYBRID = {"zero_stage": 3, "data": 8, "replicas": 2, "micro_batch": 1, "accumulation": 2}
SPLIT = {"tensor": 2, "sequence_parallel": True, "zero_stage": 2, "precision": "bf16"}
PIPELINE = {"pipeline": 2, "pipeline_schedule": "interleaved", "data": 1, "micro_batch": 1}
TAKEN = {
    "ddp": taken_of(a_plan(checkpoint_ratio=0.5, precision="bf16"), **STEEP),
    "one": taken_of(a_plan(data=1, compile=True, optimizer="adamw_foreach", loader_workers=2)),
    "offload": taken_of(a_plan(zero_stage=3, offload_parameters="cpu"), schedule="linear"),
    "hybrid": on_a_flavor(taken_of(a_plan(checkpoint_ratio=0.25, **HYBRID)), "llama-3-8b", 32),
    "split": on_a_flavor(taken_of(a_plan(checkpoint_ratio=1.0, **SPLIT)), "qwen3-8b", 36),
    "pipeline": on_a_flavor(taken_of(a_plan(**PIPELINE)), "llama-3.1-405b", 126),
}


REPLICATE, SHARD = "data_parallel_replicate_degree", "data_parallel_shard_degree"
RESHARD, TENSOR = "fsdp_reshard_after_forward", "tensor_parallel_degree"
STAGES, SCHEDULE = "pipeline_parallel_degree", "pipeline_parallel_schedule"
SIZE = "pipeline_parallel_microbatch_size"


def told(what: ExportSource) -> dict[str, Any]:
    return tomllib.loads(export_bundle(what, "torchtitan").files["train.toml"])


@pytest.mark.parametrize("case", TAKEN)
def test_every_key_is_a_field_and_every_value_one_of_its(case: str) -> None:
    sections = told(TAKEN[case])
    sections["training.dataloader"] = sections["training"].pop("dataloader")

    assert FIELDS["version"] == VERSION
    for name, keys in sections.items():
        for key, value in keys.items():
            kind = eval(FIELDS["sections"][name][key], {"Literal": Literal})  # our own file
            TypeAdapter(kind).validate_python(value, strict=True)


@pytest.mark.parametrize(
    ("case", "section", "values"),
    [
        ("ddp", "parallelism", {REPLICATE: 2, SHARD: 1, TENSOR: 1, STAGES: 1}),
        ("hybrid", "parallelism", {REPLICATE: 2, SHARD: 4, RESHARD: "always"}),
        ("split", "parallelism", {REPLICATE: 1, SHARD: 2, RESHARD: "never", TENSOR: 2}),
        ("pipeline", "parallelism", {STAGES: 2, SCHEDULE: "Interleaved1F1B", SIZE: 1}),
        ("ddp", "training", {"local_batch_size": 2, "global_batch_size": 8, "seq_len": 64}),
        ("ddp", "training", {"mixed_precision_param": "bfloat16", "enable_cpu_offload": False}),
        ("ddp", "training", {"max_norm": 1.0, "steps": 9}),
        ("one", "training", {"max_norm": float("inf"), "mixed_precision_param": "float32"}),
        ("one", "training", {"dataloader": {"num_workers": 2, "pin_memory": False}}),
        ("offload", "training", {"enable_cpu_offload": True}),
        ("pipeline", "training", {"local_batch_size": 8, "global_batch_size": 8}),
        ("ddp", "activation_checkpoint", {"mode": "selective", "selective_ac_option": "2"}),
        ("hybrid", "activation_checkpoint", {"mode": "selective", "selective_ac_option": "4"}),
        ("split", "activation_checkpoint", {"mode": "full"}),
        ("one", "activation_checkpoint", {"mode": "none"}),
        ("one", "compile", {"enable": True, "components": ["model"]}),
        ("one", "optimizer", {"lr": 3e-3, "beta2": 0.999, "implementation": "foreach"}),
        ("ddp", "lr_scheduler", {"warmup_steps": 3, "total_steps": 9, "decay_type": "cosine"}),
        ("one", "lr_scheduler", {"warmup_steps": 0, "decay_ratio": 0.0}),
        ("split", "model", {"name": "qwen3", "flavor": "8B"}),
        ("one", "model", {"name": "", "flavor": ""}),
    ],
)
def test_the_plan_is_said(case: str, section: str, values: dict[str, Any]) -> None:
    keys = told(TAKEN[case])[section]

    assert {key: keys[key] for key in values} == values


def test_stages_hold_the_blocks_that_they_were_measured_with() -> None:
    stages = told(TAKEN["pipeline"])["parallelism"]["module_fqns_per_model_part"]

    assert len(stages) == 4  # two on a rank
    blocks = [name for stage in stages for name in stage if name.startswith("layers.")]
    assert blocks == [f"layers.{block}" for block in range(126)]
    assert (stages[0][0], stages[-1][-2:]) == ("tok_embeddings", ["norm", "output"])


@pytest.mark.parametrize("schedule", CHOICES["pipeline_schedule"])
def test_torch_knows_the_schedules_by_these_names(schedule: Schedule) -> None:
    """torchtitan asks it for them."""
    plan = a_plan(pipeline=2, data=1, pipeline_schedule=schedule, micro_batch=1)
    keys = told(on_a_flavor(taken_of(plan), "llama-3.1-405b", 126))["parallelism"]

    found = get_schedule_class(keys["pipeline_parallel_schedule"])
    words = schedule.removesuffix("_zero_bubble").replace("1f1b", "schedule1f1b")
    assert words in found.__name__.lower()


@pytest.mark.parametrize(
    ("knobs", "words"),
    [
        ({"engine": "deepspeed", "zero_stage": 1}, "engine is deepspeed"),
        ({"precision": "fp16"}, "precision is fp16"),
        ({"optimizer": "adafactor"}, "optimizer is adafactor"),
        ({"compression": "bf16"}, "compression is bf16"),
        ({"zero_stage": 3, "data": 1}, "zero_stage is 3 over one rank"),
        ({"tensor": 2, "sequence_parallel": True}, "data is 2 and zero_stage 0 with tensor"),
        ({"pipeline": 2, "data": 1, "precision": "bf16"}, "precision is bf16 with pipeline"),
        ({"tensor": 2, "data": 1}, "tensor is 2 without sequence_parallel"),
        ({"checkpoint_ratio": 1.0, "checkpoint_mode": "selective"}, "checkpoint_mode is selective"),
        ({"checkpoint_ratio": 1.0, "checkpoint_offload": True}, "checkpoint_offload is true"),
        ({"checkpoint_ratio": 0.75}, "checkpoint_ratio is 0.75"),
        ({"checkpoint_ratio": 0.5, "pipeline": 2, "data": 1}, "counts blocks in each rank"),
    ],
)
def test_what_torchtitan_cannot_train_is_refused(knobs: dict[str, Any], words: str) -> None:
    reasons = list(FORMATS["torchtitan"].refusals(a_plan(**knobs)))

    assert len(reasons) == 1
    assert words in reasons[0]


@pytest.mark.parametrize(
    ("what", "words"),
    [
        (taken_of(a_plan(), method="lora"), "train.method is lora"),
        (on_a_flavor(taken_of(a_plan(checkpoint_ratio=0.5)), "x", 7), "4 of 7 blocks are recomp"),
        (on_a_flavor(taken_of(a_plan(**PIPELINE)), "qwen3-8b", 36), "no pipelines for qwen3"),
        (for_task("masked-lm"), "model.task is masked-lm"),
        (taken_of(a_plan(**SPLIT), sequence_length=63), "63 is not a multiple of tensor"),
    ],
)
def test_what_it_cannot_do_with_this_model_is_refused(what: ExportSource, words: str) -> None:
    with pytest.raises(UserError, match=f"cannot express the plan of trial 3: .*{words}"):
        export_bundle(what, "torchtitan")


@given(blocks=st.integers(1, 130), ratio=st.floats(0.01, 1.0))
def test_every_nth_block_is_what_torchtitan_counts(blocks: int, ratio: float) -> None:
    chosen = evenly_spaced(checkpointed_blocks(ratio, blocks), blocks)
    nth = every_nth(chosen, blocks)

    if nth is not None:
        counted = [block for block in range(blocks) if (block + 1) % nth == 0]  # its counter is 1
        assert list(chosen) == counted


def test_what_is_left_to_the_user_stands_in_the_header() -> None:
    bundle = export_bundle(TAKEN["ddp"], "torchtitan")
    header = bundle.files["train.toml"].partition("[job]")[0]

    assert bundle.command in header
    assert not bundle.local
    assert "in buckets of 100 MiB" in header
    for sentence in bundle.caveats:
        assert sentence in header


@given(study=st.text(max_size=30), name=st.text(min_size=1, max_size=10))
@example(study='a"""b\\\ud800\n[job]', name="x\n'")
def test_whatever_things_are_called_it_is_toml(study: str, name: str) -> None:
    model = TAKEN["one"].spec.model.model_copy(update={"name": name})
    spec = TAKEN["one"].spec.model_copy(update={"model": model})

    what = dataclasses.replace(TAKEN["one"], study=study, spec=spec)

    assert told(what)["job"]["description"].startswith("Trial 3 of study")


def installed() -> str | None:
    try:
        return version("torchtitan")
    except PackageNotFoundError:
        return None


@pytest.mark.skipif(
    installed() != VERSION,
    reason=f"torchtitan {VERSION} is not installed; it brings 1 GB of triton",
)
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("case", TAKEN)
def test_torchtitan_reads_it(case: str, tmp_path: Path) -> None:
    import torch
    from torchtitan.components.lr_scheduler import build_lr_schedulers
    from torchtitan.config import ConfigManager
    from torchtitan.distributed.activation_checkpoint import apply_ac

    what = TAKEN[case]
    (tmp_path / "train.toml").write_text(export_bundle(what, "torchtitan").files["train.toml"])

    read = ConfigManager().parse_args(["--job.config_file", str(tmp_path / "train.toml")])

    plan, train = what.plan, what.spec.train
    parallelism, training = read.parallelism, read.training
    replicas = parallelism.data_parallel_replicate_degree
    assert replicas * parallelism.data_parallel_shard_degree == plan.data
    passes = plan.accumulation if plan.pipeline > 1 else 1
    assert training.local_batch_size == plan.micro_batch * passes
    assert training.max_norm == (train.grad_clip or float("inf"))
    # its own recomputation, of blocks that do nothing
    if read.activation_checkpoint.mode != "none":
        import torchtitan.distributed.activation_checkpoint as counting

        counting._layer_sac_count = 0
        blocks = {str(block): torch.nn.Linear(1, 1) for block in range(what.model.blocks)}
        model = torch.nn.ModuleDict({"layers": torch.nn.ModuleDict(blocks)})
        apply_ac(model, read.activation_checkpoint)
        wrapped = [
            int(name)
            for name, block in model.get_submodule("layers").named_children()
            if "Checkpoint" in type(block).__name__
        ]
        chosen = checkpointed_blocks(plan.checkpoint_ratio, what.model.blocks)
        assert tuple(wrapped) == evenly_spaced(chosen, what.model.blocks)
    # its own learning rate
    sgd = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    rates = build_lr_schedulers([sgd], read.lr_scheduler, training.steps).schedulers[0]
    factor = rates.lr_lambdas[0]
    for step in range(train.warmup_steps, train.total_steps, max(train.total_steps // 7, 1)):
        done = (step - train.warmup_steps) / max(train.total_steps - train.warmup_steps, 1)
        assert factor(step) == pytest.approx(rate(train.schedule, done))


def rate(schedule: str, done: float) -> float:
    from math import cos, pi

    return {"constant": 1.0, "linear": 1 - done, "cosine": (1 + cos(pi * done)) / 2}[schedule]
