"""Export for Hugging Face's Trainer: training from its files, and plans that it refuses."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from orchestrator.export.bundle import write_bundle
from orchestrator.export.formats import export_bundle
from search_spaces.specification.schema import SweepSpec
from tests.orchestrator.export.folders import CLIP, STEPS, run_folder, taken_of
from tests.workers.test_same_training import LOSS_TOLERANCE
from tests.workers.values import a_plan, a_spec
from workers.data.batches import WORST_STEP
from workers.models.built import batch_source
from workers.models.load import build_whole

T5: dict[str, Any] = {
    "model_type": "t5",
    "architectures": ["T5ForConditionalGeneration"],
    "d_model": 32,
    "d_ff": 64,
    "d_kv": 8,
    "num_layers": 2,
    "num_heads": 4,
    "vocab_size": 100,
    "dropout_rate": 0.0,
    "decoder_start_token_id": 0,
}
BERT: dict[str, Any] = {
    "model_type": "bert",
    "architectures": ["BertForMaskedLM"],
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 100,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}


def spec_for(config: dict[str, Any], task: str, folder: Path) -> SweepSpec:
    """Returns a specification with a model of its own folder, which is read by a script as well."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    return a_spec(
        model={"name": str(folder), "task": task},
        cluster={"device": "cpu", "workers": 1},
        train={"grad_clip": CLIP / 4},
    )


def plain_losses(spec: SweepSpec, steps: int) -> list[float]:
    """Returns the losses of a loop that takes one sample at a time, weighted by its targets."""
    model = build_whole(spec.model, spec.train, attention="eager")
    source = batch_source(model, spec)
    one_by_one = a_plan(data=1, micro_batch=1)
    train, weights = spec.train, list(model.module.parameters())
    optimizer = torch.optim.AdamW(weights, lr=train.learning_rate, weight_decay=train.weight_decay)
    losses = []
    for number in range(WORST_STEP, WORST_STEP + steps):
        step, loss = source.step(one_by_one, 0, number), 0.0
        for batch in step.batches:
            part = model.module(**batch.inputs).loss * batch.targets / step.targets
            part.backward()
            loss += part.item()
        torch.nn.utils.clip_grad_norm_(weights, train.grad_clip or 0.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss)
    return losses


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize(
    ("config", "task"),
    [(T5, "seq2seq"), (BERT, "masked-lm"), (BERT, "sequence-classification")],
    ids=["T5", "BERT", "classification"],
)
def test_models_that_ignore_trainers_count_train_steps_of_the_same_length(
    config: dict[str, Any], task: str, tmp_path: Path
) -> None:
    """Trainer believes that they divide by its count, and would take steps four times as long."""
    spec = spec_for(config, task, tmp_path / "model")
    what = taken_of(a_plan(data=1, micro_batch=2), spec=spec)
    write_bundle(export_bundle(what, "hf-trainer"), what, tmp_path / "out")

    lines = run_folder(tmp_path / "out", steps=STEPS)

    losses = [line["loss"] for line in lines]
    assert losses == pytest.approx(plain_losses(spec, STEPS), rel=LOSS_TOLERANCE)


def on_cuda(**knobs: Any) -> dict[str, Any]:
    """Returns the arguments of a plan measured on GPUs."""
    what = replace(taken_of(a_plan(**knobs)), device="cuda")
    files = export_bundle(what, "hf-trainer").files
    told: dict[str, Any] = json.loads(files["training_arguments.json"])
    return told


def test_it_says_what_trainer_does_otherwise_between_micro_batches() -> None:
    def caveats(**knobs: Any) -> str:
        what = replace(taken_of(a_plan(**knobs)), device="cuda")
        return " ".join(export_bundle(what, "hf-trainer").caveats)

    for stage, gathers in ((2, True), (3, False)):
        assert "Trainer keeps them whole" in (text := caveats(zero_stage=stage))
        assert ("Trainer gathers them in each" in text) is gathers
        assert "Trainer keeps" not in caveats(zero_stage=stage, micro_batch=4)  # a single one


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
