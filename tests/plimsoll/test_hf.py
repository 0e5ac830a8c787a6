"""Trainers of transformers: what of one becomes a job, what is refused, and how it is compared."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import plimsoll
from plimsoll import hf
from plimsoll.arguments import job_of
from search_spaces.specification.trainer_configs.conversion import settings_of
from search_spaces.specification.trainer_configs.document import flattened
from search_spaces.specification.trainer_configs.tables import trainers
from tests.orchestrator.export.test_hf_trainer import on_cuda
from workers.models.function import import_function

ROWS = [{"input_ids": [number % 60] * 8, "labels": [number % 60] * 8} for number in range(40)]
TINY = {"n_embd": 16, "n_layer": 2, "n_head": 2, "vocab_size": 64, "n_positions": 32}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Works in an empty folder, and restores what is trusted."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PLIMSOLL_TRUST_MODULES", "")


def gpt2(*, head: int = 0, loss: Any = None) -> GPT2LMHeadModel:
    model = GPT2LMHeadModel(GPT2Config(**TINY))
    if head:
        model.lm_head = nn.Linear(16, head)
    if loss:
        model.loss_function = loss
    return model


class Own(Trainer):
    """A Trainer with a loss of its own, and another evaluation."""

    def compute_loss(self, *args: Any, **options: Any) -> Any:
        return 2 * super().compute_loss(*args, **options)

    def evaluate(self, *args: Any, **options: Any) -> Any:
        return {}


def trainer(kind: type[Trainer] = Trainer, model: Any = None, **keys: Any) -> Trainer:
    names = ("compute_loss_func", "optimizers", "model_init", "train_dataset")
    init = {"train_dataset": ROWS} | {name: keys.pop(name) for name in names if name in keys}
    keys = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2} | keys
    args = TrainingArguments(output_dir="out", use_cpu=True, report_to=[], **keys)
    model = None if "model_init" in init else model or gpt2()
    return kind(model=model, args=args, **init)


def test_a_trainer_becomes_a_job_with_its_settings_as_the_baseline() -> None:
    model = gpt2()
    model.transformer.wte.requires_grad_(False)
    keys = {"optim": "adamw_torch", "adam_beta2": 0.95, "bf16": True, "max_grad_norm": 0.5}
    keys |= {"warmup_steps": 0.1, "lr_scheduler_type": "cosine", "gradient_checkpointing": True}

    job = job_of("f", hf.specification(trainer(model=model, **keys)), {"workers": 1})

    train, baseline = job.spec.train, job.spec.baseline
    assert (job.name, train.global_batch, train.total_steps, train.warmup_steps) == (
        *("GPT2LMHeadModel", 4, 30, 3),
    )
    assert (train.betas, train.precision, train.grad_clip) == ((0.9, 0.95), "bf16", 0.5)
    assert (train.schedule, train.decay, job.spec.cluster.device) == ("cosine", "stock", "cpu")
    assert (baseline["micro_batch"], baseline["optimizer"]) == (2, "adamw_foreach")
    assert baseline["checkpoint_ratio"] == 1.0
    module, make = import_function(job.spec.model.name)()
    frozen = [name for name, one in module.named_parameters() if not one.requires_grad]
    assert frozen == ["transformer.wte.weight"]
    assert (make((1, 2))["labels"].tolist(), len(make)) == ([[1] * 8, [2] * 8], 40)


def test_a_model_of_peft_is_built_with_its_adapters() -> None:
    peft = pytest.importorskip("peft")
    transposed = {"fan_in_fan_out": True}  # GPT-2's layers
    adapters = peft.LoraConfig(r=4, target_modules=["c_attn"], **transposed)
    model = peft.get_peft_model(gpt2(), adapters)

    job = job_of("f", hf.specification(trainer(model=model)), {"workers": 1})

    module, make = import_function(job.spec.model.name)()
    states = {name: one.requires_grad for name, one in module.named_parameters()}
    assert states == {name: one.requires_grad for name, one in model.named_parameters()}
    assert {name.split(".")[-3] for name, trained in states.items() if trained} == {
        *("lora_A", "lora_B")
    }
    batch = {name: torch.as_tensor(value) for name, value in make((1, 2)).items()}
    module(**batch).loss.backward()
    assert all((one.grad is not None) == one.requires_grad for one in module.parameters())

    model.add_adapter("another", peft.LoraConfig(r=2, target_modules=["c_proj"], **transposed))
    with pytest.raises(plimsoll.PlimsollError, match="give it a model_init"):
        hf.specification(trainer(model=model))


WITH_FSDP = """
import plimsoll
from plimsoll import hf
from tests.plimsoll.test_hf import trainer

sharded = {"version": 2, "reshard_after_forward": False, "cpu_offload": True}
try:
    tree = hf.specification(trainer(fsdp=True, fsdp_config=sharded))
    print(tree["baseline"])
except plimsoll.PlimsollError as error:
    print(error)
"""


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize(
    ("processes", "words"),
    [
        (1, "'zero_stage': 2, 'offload_optimizer': 'cpu', 'offload_parameters': 'cpu'"),
        (2, "make it in one (with fsdp, by torchrun --nproc-per-node 1)"),
    ],
)
def test_a_trainer_with_fsdp_is_tuned_from_one_process_of_torchrun(
    processes: int, words: str, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(WITH_FSDP)
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    ran = subprocess.run(
        [sys.executable, *launcher, "train.py"],
        env=os.environ | {"PYTHONPATH": str(Path(plimsoll.__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )

    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count(words) == processes, ran.stdout


def test_a_model_that_was_changed_is_built_by_model_init() -> None:
    tree = hf.specification(trainer(model_init=lambda: gpt2(head=70).to(torch.bfloat16)))

    assert tree["model"]["name"]().lm_head.out_features == 70
    assert tree["train"]["precision"] == "bf16"


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"kind": Own}, "this Own cannot be tuned: it has its own compute_loss; a module"),
        ({"compute_loss_func": lambda *_: 0}, "it has a compute_loss_func"),
        ({"model": gpt2(loss=lambda **_: 0)}, "its model has another _loss_function"),
        ({"label_smoothing_factor": 0.1}, "label_smoothing_factor is 0.1"),
        ({"neftune_noise_alpha": 5.0}, "neftune_noise_alpha is 5.0"),
        ({"optimizers": (torch.optim.SGD(gpt2().parameters()), None)}, "it has an optimizer"),
        ({"optim": "rmsprop"}, "there is no optimizer 'rmsprop'"),
        ({"lr_scheduler_type": "polynomial"}, 'train.schedule is "polynomial"'),
        ({"model": gpt2(head=70)}, "another lm_head.bias than its class builds: give it a model_"),
        ({"model": nn.Linear(2, 2)}, "no trial can build its Linear: give it a model_init"),
        ({"train_dataset": None}, "it has no train_dataset"),
    ],
)
def test_what_no_trial_does_is_refused(keys: dict[str, Any], sentence: str) -> None:
    with pytest.raises(plimsoll.PlimsollError) as error:
        hf.specification(trainer(**keys))

    assert sentence in str(error.value)


@pytest.mark.parametrize(
    "knobs",
    [
        {"micro_batch": 4, "accumulation": 1, "bucket_mib": 100, "precision": "bf16"},
        {"checkpoint_ratio": 1.0, "optimizer": "adamw_foreach"},
        {"zero_stage": 2, "precision": "fp32", "optimizer": "adamw_fused"},
        {"zero_stage": 3, "offload_optimizer": "cpu", "offload_parameters": "cpu"},
    ],
)
def test_the_table_reads_what_the_export_writes(knobs: dict[str, Any]) -> None:
    table, written = trainers()["TrainingArguments"], dict(flattened(on_cuda(**knobs)))

    settings = settings_of(table, written, Path())

    names = {"accumulation": None, "precision": "train.precision"}
    for knob, value in knobs.items():
        name = names.get(knob, f"baseline.{knob}")
        assert name is None or settings.values[name] == value
    assert settings.impossible == []


PROGRAM = """
import json, logging
from plimsoll import hf
from tests.plimsoll.test_hf import trainer

logging.basicConfig(level=logging.INFO)
sweep = hf.tune(trainer(), minutes=60, trials=2, workers=1, view=False,
    space={"micro_batch": [1, 4], "checkpoint_ratio": [0.0]}, tracking={"enabled": False},
    validation={"enabled": False, "repeats": 0})
best = sweep.best
for keys in ({"max_grad_norm": 3.0, "per_device_train_batch_size": 8}, best.training_arguments()):
    own = ("output_dir", "use_cpu", "report_to", "disable_tqdm")
    keys = {name: value for name, value in keys.items() if name not in own} | {"max_steps": 2}
    training = trainer(**keys)
    training.add_callback(hf.AnswerCallback(sweep.where))
    training.train()
    training.train()
print(json.dumps([len(sweep.records), sweep.state.study]))
"""


@pytest.mark.slow
def test_a_trainer_is_tuned_and_then_says_where_it_differs(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    environment["PYTHONPATH"] = str(Path(plimsoll.__file__).parents[1])
    command = [sys.executable, "train.py"]
    ran = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=800, check=False
    )

    assert ran.returncode == 0, ran.stderr
    records, study = json.loads(ran.stdout.splitlines()[-1])
    said = [line for line in ran.stderr.splitlines() if "this Trainer" in line]
    assert (records > 0, study, len(said)) == (True, "GPT2LMHeadModel", 2)
    assert "WARNING:plimsoll:this Trainer differs (per_device_" in said[0]
    assert "max_grad_norm is 3.0, there 1.0" in said[0]
    assert "INFO:plimsoll:this Trainer has the settings of the answer, trial " in said[1]
