"""Adapters: their layers, frozen weights, counts, and messages about wrong names."""

from typing import Any

import pytest
import torch

from search_spaces.errors import ModelError
from search_spaces.specification.schema import ModelSpec
from search_spaces.specification.sections import Base, LoraSpec, TrainSpec
from tests.workers.models.tiny_models import TINY_BERT, TINY_GPT2, TINY_LLAMA
from tests.workers.values import a_spec, odd_model
from workers.models.load import build, build_whole, describe
from workers.tracing.model_work import count_work

RANK = 4
FULL = TrainSpec(global_batch=8, sequence_length=32, precision="fp32")
LORA = FULL.model_copy(update={"method": "lora", "lora": LoraSpec(rank=RANK, alpha=8)})
ODD = ModelSpec.model_validate(odd_model("none", width=6, layers=3))


def _targeting(*names: str, saved: tuple[str, ...] = ()) -> TrainSpec:
    lora = LoraSpec(rank=RANK, target_modules=names, modules_to_save=saved)
    return LORA.model_copy(update={"lora": lora})


# An adapter of a layer with n inputs and m outputs has rank * (n + m) numbers. Llama, a layer:
# q and o 32 -> 32, k and v 32 -> 16, gate and up 32 -> 64, down 64 -> 32. GPT-2: 32 -> 96 -> 32
# and 32 -> 128 -> 32. BERT: four of 32 -> 32, 32 -> 64 -> 32.
@pytest.mark.cases_by_default(2)
@pytest.mark.parametrize(
    ("spec", "inputs_and_outputs"),
    [
        (TINY_LLAMA, 2 * (2 * 64 + 2 * 48 + 3 * 96)),
        (TINY_GPT2, 2 * (128 + 64 + 2 * 160)),
        (TINY_BERT, 3 * (4 * 64 + 2 * 96)),
        (ODD, 3 * 12),
    ],
    ids=["llama", "gpt2", "bert", "function"],
)
def test_every_linear_layer_of_the_blocks_gets_one(
    spec: ModelSpec, inputs_and_outputs: int
) -> None:
    facts, full = describe(spec, LORA), describe(spec, FULL)
    built = build(spec, LORA, attention="eager")
    weights = dict(built.module.named_parameters())
    trained = {name for name, weight in weights.items() if weight.requires_grad}

    assert facts.trainable_parameters == RANK * inputs_and_outputs
    assert facts.parameters == full.parameters + facts.trainable_parameters
    assert full.trainable is None
    assert sum(weights[name].numel() for name in trained) == facts.trainable
    assert trained == {name for name in weights if "lora_" in name}
    assert len(built.blocks) == facts.blocks == full.blocks


def test_some_layers_can_be_chosen() -> None:
    chosen = build(TINY_LLAMA, _targeting("q_proj", "layers.1.mlp.down_proj"), attention="eager")

    assert {name for name, weight in chosen.module.named_parameters() if weight.requires_grad} == {
        f"model.layers.{layer}.lora_{factor}.default.weight"
        for layer in ("0.self_attn.q_proj", "1.self_attn.q_proj", "1.mlp.down_proj")
        for factor in "AB"
    }


def test_embeddings_can_be_chosen_and_modules_be_trained_in_full() -> None:
    """A copy that is trained begins as the original, from which adapters stay away."""
    chosen = _targeting("embed_tokens", "v_proj", "lm_head", saved=("model.norm", "lm_head"))
    built = build_whole(TINY_LLAMA, chosen, attention="eager")
    weights = dict(built.module.named_parameters(remove_duplicate=False))
    trained = {name for name, weight in weights.items() if weight.requires_grad}
    copies = {name for name in trained if "modules_to_save" in name}

    assert copies == {
        f"{name}.modules_to_save.default.weight" for name in ("model.norm", "lm_head")
    }
    assert trained - copies == {
        *(f"model.embed_tokens.lora_embedding_{factor}.default" for factor in "AB"),
        *(
            f"model.layers.{layer}.self_attn.v_proj.lora_{factor}.default.weight"
            for layer in "01"
            for factor in "AB"
        ),
    }
    for name in copies:
        original = weights[name.replace("modules_to_save.default", "original_module")]
        assert original.any()
        assert torch.equal(weights[name], original)
    assert describe(TINY_LLAMA, chosen).trainable == sum(weights[name].numel() for name in trained)


@pytest.mark.cases_by_default(3)
@pytest.mark.parametrize(
    ("update", "base", "dtypes"),
    [
        ({"precision": "bf16"}, "bf16", {torch.bfloat16}),
        ({"precision": "fp32"}, "fp32", {torch.float32}),
        ({"precision": "bf16", "base": "nf4"}, "nf4", {torch.bfloat16, torch.uint8}),
        ({"precision": "bf16", "base": "int8"}, "int8", {torch.bfloat16, torch.int8}),
    ],
)
@pytest.mark.parametrize("spec", [TINY_LLAMA, ODD], ids=["llama", "function"])
def test_frozen_weights_are_held_as_the_base_says(
    spec: ModelSpec, update: dict[str, Any], base: Base, dtypes: set[torch.dtype]
) -> None:
    lora = LoraSpec(rank=RANK, base=update.get("base"))
    train = LORA.model_copy(update={"precision": update["precision"], "lora": lora})
    weights = list(build_whole(spec, train, attention="eager").module.parameters())

    assert describe(spec, train).base == base
    assert {one.dtype for one in weights if one.requires_grad} == {torch.float32}
    assert {one.dtype for one in weights if not one.requires_grad} == dtypes


@pytest.mark.parametrize("spec", [TINY_LLAMA, TINY_GPT2, ODD], ids=["llama", "gpt2", "function"])
def test_before_the_first_step_the_model_is_that_of_full_training(spec: ModelSpec) -> None:
    """The second factor starts at zero, and the frozen weights equal those of a full build."""
    full, adapted = (build_whole(spec, train, attention="eager") for train in (FULL, LORA))
    inputs: Any = {"input_ids": torch.arange(16)[None], "labels": torch.arange(16)[None]}
    if full.batch_maker is not None:
        inputs = full.batch_maker((0, 1))
    losses = [model.module(**inputs) for model in (full, adapted)]

    first, second = (getattr(loss, "loss", loss) for loss in losses)
    assert first == second
    factors = {
        name: weight for name, weight in adapted.module.named_parameters() if weight.requires_grad
    }
    assert all(weight.eq(0).all() == ("lora_B" in name) for name, weight in factors.items())


@pytest.mark.parametrize(
    ("spec", "targets", "said"),
    [
        (
            TINY_LLAMA,
            ("k_proj", "q_prj"),
            "'q_prj', which is not a linear layer or embedding of .*: q_proj|q_proj",
        ),
        (TINY_LLAMA, ("input_layernorm",), "or embedding of llama-3.2-1b; the nearest are"),
        (
            TINY_GPT2,
            ("attn",),
            "'attn', which is not a linear layer or embedding of gpt2; .*c_attn",
        ),
        (ODD, ("layer",), "not a linear layer or embedding of .*; the nearest are "),
    ],
)
def test_a_wrong_name_is_told_beforehand(
    spec: ModelSpec, targets: tuple[str, ...], said: str
) -> None:
    with pytest.raises(ModelError, match=said) as caught:
        describe(spec, _targeting(*targets))

    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("spec", "lora", "said"),
    [
        (
            TINY_LLAMA,
            {"modules_to_save": ("lm_haed",)},
            "'lm_haed', which is .*nearest are lm_head",
        ),
        (TINY_GPT2, {"base": "nf4"}, "gpt2 has no `nn.Linear` in .*base must be bf16 or fp32"),
    ],
)
def test_what_a_model_cannot_hold_or_save_is_told_beforehand(
    spec: ModelSpec, lora: dict[str, Any], said: str
) -> None:
    train = LORA.model_copy(update={"precision": "bf16", "lora": LoraSpec(**lora)})
    with pytest.raises(ModelError, match=said):
        describe(spec, train)


def test_flops_by_hand() -> None:
    """A frozen matmul has a gradient for its input alone; the first layer's input needs none."""
    width, rank = 16, 4
    per_matmul = 2 * width * width
    per_factor = 2 * width * rank
    forward = 2 * (per_matmul + 2 * per_factor)
    backward = per_matmul + (1 + 2) * per_factor + 2 * 2 * per_factor
    train = {"method": "lora", "lora": {"rank": rank}}

    adapted, full = (
        count_work(a_spec(model=odd_model("none"), train=kind)) for kind in (train, {})
    )
    assert adapted is not None
    assert adapted.flops_per_token == forward + backward
    assert full is not None
    # the input of a first layer is data, whose gradient nobody needs
    assert full.flops_per_token == 2 * 2 * per_matmul + per_matmul
