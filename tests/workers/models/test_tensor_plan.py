"""Tensor plans on the meta device: allowed splits, and reasons of refusals."""

from torch import nn

from search_spaces.specification.schema import ModelSpec
from search_spaces.specification.sections import TrainSpec
from tests.workers.models.tiny_models import TINY_BERT, TINY_GPT2, TINY_LLAMA, on_meta
from workers.models.load import build
from workers.models.tensor_plan import tensor_facts, tensor_plan

SMALL = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "vocab_size": 64,
    "num_attention_heads": 4, "num_key_value_heads": 2,
}  # fmt: skip


def built(spec: ModelSpec) -> nn.Module:
    return build(spec, TrainSpec(global_batch=1), attention="eager").module


def test_a_degree_must_divide_heads_and_hidden_units() -> None:
    spec = TINY_LLAMA.model_copy(
        update={"config": TINY_LLAMA.config | {"intermediate_size": 42, "head_dim": 8}}
    )

    facts = tensor_facts(built(spec))

    assert facts.refusal is None
    assert facts.divisors == (
        ("attention heads", 4), ("key-value heads", 2), ("intermediate size", 42)
    )  # fmt: skip


def test_tied_weights_are_split_alike() -> None:
    for spec in (TINY_LLAMA, TINY_GPT2, TINY_BERT):
        module = built(spec)
        split = dict(tensor_plan(module).vocabulary)
        weights = {id(module.get_submodule(name).weight) for name in split}
        assert sorted(split.values()) == ["colwise_gather_output", "embedding_rowwise"]
        assert len(weights) == 1


def test_experts_are_not_split() -> None:
    facts = tensor_facts(on_meta("mixtral", **SMALL, num_local_experts=2))

    assert facts.refusal == facts.sequence_refusal
    assert facts.refusal == (
        "MixtralForCausalLM is a mixture of experts, whose experts are not split over tensor ranks"
    )


def test_a_style_that_is_not_supported_is_refused_by_name() -> None:
    given = {"model.layers.*.mlp.experts": "moe_tp_experts"}

    refusal = tensor_facts(on_meta("mixtral", **SMALL, num_local_experts=2), given).refusal

    assert refusal == (
        "MixtralForCausalLM: its plan splits model.layers.*.mlp.experts as moe_tp_experts, which"
        " is not supported"
    )


def test_an_architecture_without_a_plan_is_refused_until_it_is_given_one() -> None:
    module = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 6))

    facts = tensor_facts(module, {"0": "colwise", "2": "rowwise"})

    assert tensor_facts(module).refusal == (
        "Sequential has no tensor-parallel plan, neither in transformers nor in model.tensor_plan"
    )
    assert facts.refusal is None
    assert facts.divisors == (("outputs of 0", 12),)
    assert facts.sequence_refusal is not None


def test_only_projections_can_be_split() -> None:
    module = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 6))

    assert tensor_facts(module, {"1": "colwise"}).refusal == (
        "Sequential: its plan splits 1 as colwise, which is impossible for a ReLU"
    )


def test_a_weight_with_one_number_per_head_is_refused() -> None:
    """Doge's attention has one beside its projections, which no style splits."""
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4}

    assert tensor_facts(on_meta("doge", hidden_size=32, num_hidden_layers=2, **heads)).refusal == (
        "DogeForCausalLM: model.layers.0.self_attn.A has one number per head, which no plan splits"
    )
