"""`trainer_configs`: every key of another trainer's configuration is taken or listed."""

import json
from pathlib import Path
from typing import Any

import pytest

from search_spaces.errors import UserError
from search_spaces.specification.load import load_spec, parse_spec
from search_spaces.specification.schema import SweepSpec
from search_spaces.specification.trainer_configs.conversion import Conversion, convert
from search_spaces.specification.trainer_configs.document import flattened
from search_spaces.specification.trainer_configs.tables import trainers

DEEPSPEED = """\
{"train_batch_size": 64, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2,
\t"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"},
 "reduce_bucket_size": 5e8}, "fp16": {"enabled": true}, "gradient_clipping": 0.5, "prescale": 1,
 "optimizer": {"type": "AdamW", "params": {"lr": 3e-5, "betas": [0.9, 0.95]}}}"""
ACCELERATE = """\
distributed_type: FSDP
mixed_precision: 'no'
num_processes: 8
fsdp_config: {fsdp_sharding_strategy: SHARD_GRAD_OP, fsdp_offload_params: true, fsdp_version: 1}
"""
ARGUMENTS = """\
training_args:
  per_device_train_batch_size: 3
  world_size: 4
  fp16: false
  warmup_ratio: 0.1
  max_steps: 50
  fsdp: full_shard auto_wrap
  logging_steps: 10
  max_grad_norm: 0
model_name_or_path: gpt2
"""
AXOLOTL = """\
base_model: gpt2
sequence_len: 8192
micro_batch_size: 2
gradient_accumulation_steps: 4
optimizer: adamw_8bit
adapter: lora
lora_r: 16
lora_target_modules: [q_proj, v_proj]
sample_packing: true
chat_template: llama3
liger_rope: true
load_in_8bit: true
"""
LLAMA_FACTORY = """\
model_name_or_path: gpt2
lora_rank: 16
lora_target: all
flash_attn: fa2
bf16: true
gradient_accumulation_steps: 8
per_device_train_batch_size: 1
template: qwen
deepspeed: linked.json
"""
TOML = """\
[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 2
seq_len = 8192
[parallelism]
tensor_parallel_degree = 2
data_parallel_shard_degree = 4
pipeline_parallel_degree = 2
"""
PYTHON = """\
raise SystemExit("this is never run")
def llama3_8b() -> Trainer.Config:
    return Trainer.Config(
        hf_assets_path="./assets/hf/Llama-3.1-8B", model_spec=model_registry("8B"),
        optimizer=OptimizersContainer.Config(lr=3e-4),
        training=TrainingConfig(local_batch_size=1, seq_len=4096, steps=1000),
        activation_checkpoint=ActivationCheckpointConfig(mode="full"))
def changed():
    config = llama3_8b()
    config.training.local_batch_size = 6
    config.compile = CompileConfig(enable=True)
    return config
"""
CASES: dict[str, tuple[str, dict[str, Any], str]] = {
    "DeepSpeed": (
        DEEPSPEED,
        {"train.global_batch": 64, "cluster.workers": 8, "train.precision": "fp16"}
        | {"train.grad_clip": 0.5, "train.learning_rate": 3e-5, "baseline.engine": "deepspeed"}
        | {"baseline.zero_stage": 2, "baseline.offload_optimizer": "cpu"},
        "optimizer.params.betas",
    ),
    "accelerate": (
        ACCELERATE,
        {"cluster.workers": 8, "train.precision": "fp32", "baseline.zero_stage": 2}
        | {"baseline.offload_parameters": "cpu"},
        "fsdp_config.fsdp_version",
    ),
    "TrainingArguments": (
        ARGUMENTS,
        {"train.global_batch": 12, "train.precision": "fp32", "train.warmup_steps": 5}
        | {"train.learning_rate": 5e-5, "train.decay": "stock", "train.grad_clip": None}
        | {"baseline.zero_stage": 3, "baseline.micro_batch": 3},
        "logging_steps",
    ),
    "axolotl": (
        AXOLOTL,
        {"train.global_batch": 8, "train.sequence_length": 8192, "train.method": "lora"}
        | {"train.lora.rank": 16, "train.lora.target_modules": ("q_proj", "v_proj")}
        | {"baseline.batching": "packed", "baseline.optimizer": "adamw_8bit"}
        | {"train.lora.base": "int8"},
        "liger_rope",
    ),
    "LLaMA-Factory": (
        LLAMA_FACTORY,
        {"train.global_batch": 8, "train.sequence_length": 2048, "train.lora.alpha": 32.0}
        | {"baseline.engine": "deepspeed", "baseline.attention": "flash_attention_2"}
        | {"baseline.zero_stage": 3, "train.precision": "bf16", "train.method": "lora"},
        "template",
    ),
    "torchtitan": (
        TOML,
        {"model.name": "llama-3-8b", "cluster.workers": 16, "train.global_batch": 8}
        | {
            "baseline.micro_batch": 1,
            "baseline.tensor": 2,
            "train.grad_clip": 1.0,
            "baseline.checkpoint_mode": "selective",
        },
        "",
    ),
}


@pytest.fixture
def written(tmp_path: Path) -> Any:
    """Returns a function that converts a text; the suffix of its file says nothing."""
    linked = {"zero_optimization": {"stage": 3}, "bf16": {"enabled": "auto"}}
    (tmp_path / "linked.json").write_text(json.dumps(linked))

    def convert_text(text: str, name: str = "") -> Conversion:
        (tmp_path / "config.txt").write_text(text)
        return convert(f"{tmp_path / 'config.txt'}{name}")

    return convert_text


def spec_of(conversion: Conversion) -> SweepSpec:
    """Returns the specification, with what the file does not say filled in."""
    blanks = {"model.name": "gpt2", "train.global_batch": "8"}
    missing = [key for key in blanks if any(blank.startswith(key) for blank in conversion.blanks)]
    return parse_spec(
        conversion.text, source="written", overrides=[f"{key}={blanks[key]}" for key in missing]
    )


@pytest.mark.parametrize("name", CASES)
def test_takes_or_lists_every_key(name: str, written: Any) -> None:
    text, expected, left_out = CASES[name]
    conversion = written(text)
    values = dict(flattened(spec_of(conversion).model_dump()))

    assert conversion.trainer == name
    assert {key: values[key] for key in expected} == expected
    assert left_out in " ".join(conversion.omitted)
    assert "Plimsoll has no such setting" not in conversion.text or name == "DeepSpeed"


@pytest.mark.parametrize("name", trainers())
@pytest.mark.parametrize(
    "value", [[1], {"a": 1}, 4, -3, 2.5, "x", True, None, "auto", "a\n# \x01\u2028😀"], ids=str
)
def test_no_value_breaks_the_specification_or_is_silent(
    name: str, value: Any, written: Any
) -> None:
    trainer = trainers()[name]
    given = dict.fromkeys([*trainer.own, *trainer.takes, "un\nheard_of"], value)
    conversion = written(json.dumps(given))
    said = " ".join([conversion.text, *conversion.omitted])

    spec_of(conversion)
    assert [key for key in given if key.replace("\n", " ") not in said] == []


def test_data_that_is_here_is_taken_and_what_it_says_besides_is_listed(
    written: Any, tmp_path: Path
) -> None:
    (tmp_path / "a.jsonl").write_text('{"body": "a"}')
    entry = {"path": str(tmp_path / "a.jsonl"), "field": "body", "type": "completion"}
    conversion = written(json.dumps({"base_model": "org/name", "datasets": [entry]}))
    spec = spec_of(conversion)

    assert (spec.data.files, spec.data.field) == ((entry["path"],), "body")
    assert spec.data.tokenizer == "org/name"
    assert "datasets[].type" in " ".join(conversion.omitted)


def test_deepspeeds_tensor_ranks_are_taken_so_that_a_rule_refuses_the_baseline(
    written: Any,
) -> None:
    config = {"train_micro_batch_size_per_gpu": 4, "tensor_parallel": {"autotp_size": 2}}
    baseline = spec_of(written(json.dumps(config))).baseline

    assert (baseline["engine"], baseline["tensor"]) == ("deepspeed", 2)


def test_a_python_file_is_parsed_by_the_name_of_its_configuration(written: Any) -> None:
    spec = spec_of(written(PYTHON, ":changed"))

    assert (spec.model.name, spec.train.global_batch, spec.train.total_steps) == (
        "llama-3.1-8b",
        6,
        1000,
    )
    assert spec.baseline["compile"] is True
    assert spec.baseline["checkpoint_ratio"] == 1.0
    with pytest.raises(UserError, match="holds llama3_8b, changed: name one"):
        written(PYTHON)


@pytest.mark.parametrize("text", [PYTHON, *(text for text, _, _ in CASES.values())])
def test_a_specification_is_told_from_a_trainers_file(text: str, tmp_path: Path) -> None:
    (tmp_path / "any.txt").write_text(text)

    with pytest.raises(UserError, match=r"is a configuration of .*; `plimsoll init --from "):
        load_spec(tmp_path / "any.txt")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("base_model: a\n---\nb: 2", "another document"),
        ("base_model: [", "is not valid YAML"),
        ("- base_model", "is a list"),
        ("", "is empty"),
        ('{"a":' * 5000, "nested deeper"),
        ("model: gpt2\ntrain: {global_batch: 8}\nadapter: lora", "no keys of a known trainer"),
    ],
)
def test_a_file_that_is_none_gets_one_sentence(text: str, problem: str, written: Any) -> None:
    with pytest.raises(UserError, match=problem) as caught:
        written(text)
    assert "\n" not in str(caught.value)
