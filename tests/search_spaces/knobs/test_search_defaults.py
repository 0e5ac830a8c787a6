"""`search_defaults`: the values searched if the specification names none."""

from typing import Any

import numpy as np
import pytest

from search_spaces.facts import TensorFacts
from search_spaces.plan import Plan
from search_spaces.space import Space, build_space
from search_spaces.specification.schema import GIB
from tests.search_spaces.values import a_cluster, a_model, a_spec, around

LARGE = {"parameters": 8_000_000_000, "blocks": 32}  # model states of 119 GiB
LENGTHS = {"lengths": {64: 1.0, 128: 1.0}}


def searched(
    workers: int, device: str = "cuda", spec: dict[str, Any] | None = None, **model: Any
) -> Space:
    """Returns the values searched on ranks of 80 GiB."""
    train = {"global_batch": 128, "precision": "bf16"}
    facts = a_model(**{"tensor": TensorFacts(divisors=(("attention heads", 32),))} | model)
    cluster = a_cluster(slots=workers, device=device, memory_limit_bytes=80 * GIB)
    sections = {"data": LENGTHS, "train": train} | (spec or {})
    return build_space(around(spec=a_spec(**sections), model=facts, cluster=cluster), workers)


def domains(*arguments: Any, **named: Any) -> dict[str, tuple[Any, ...]]:
    return dict(searched(*arguments, **named).domains)


def test_a_model_that_fits_a_gpu_is_not_split_into_slices_or_stages() -> None:
    values = domains(8)

    assert (values["tensor"], values["pipeline"]) == ((1,), (1,))
    assert values["zero_stage"] == (0, 2, 3)
    assert values["offload_optimizer"] == ("none",)
    assert values["attention"] == ("sdpa",)
    assert values["compile"] == (False, True)
    assert values["checkpoint_mode"] == ("full", "selective")


@pytest.mark.parametrize(
    ("words", "device", "facts", "values"),
    [
        (50_257, "cuda", {}, (1, 64)),
        (50_257, "cpu", {}, (1,)),
        (50_264, "cuda", {}, (1,)),  # a multiple of 8
        (50_257, "cuda", {"loss_refusal": "it has no head"}, (1,)),
    ],
)
def test_a_vocabulary_is_padded_where_tensor_cores_would_load_parts(
    words: int, device: str, facts: dict[str, Any], values: tuple[int, ...]
) -> None:
    assert domains(1, device, vocab_size=words, **facts)["vocab_multiple"] == values


@pytest.mark.parametrize(
    ("tokens", "device", "facts", "values"),
    [
        (131_072, "cuda", {}, (1, 8)),
        (8_192, "cuda", {}, (1,)),
        (131_072, "cpu", {}, (1,)),
        (131_072, "cuda", {"tile_refusal": "it has no MLP"}, (1,)),
    ],
)
def test_long_sequences_are_tiled(
    tokens: int, device: str, facts: dict[str, Any], values: tuple[int, ...]
) -> None:
    head = {"head_parameters": 4096 * 128_256, "vocab_size": 128_256}
    train = {"global_batch": 128, "precision": "bf16", "sequence_length": tokens}
    spec = {"data": {}, "train": train, "space": {"tensor": [1]}}

    assert domains(1, device, spec=spec, **head, **facts)["mlp_tiles"] == values


def test_a_model_that_fits_no_gpu_is_split_within_the_node() -> None:
    values = domains(8, **LARGE)

    assert values["tensor"] == (1, 2, 4, 8)
    assert values["sequence_parallel"] == (False, True)
    assert values["pipeline"] == (1,)
    assert values["data"] == (8, 4, 2, 1)


def test_ranks_that_the_global_batch_cannot_feed_split_the_model() -> None:
    small = {"train": {"global_batch": 4}}

    assert domains(8, spec=small)["tensor"] == (1, 2, 4, 8)
    assert {plan.data for plan in searched(8, spec=small).candidates} == {4, 2, 1}


def test_deepspeed_splits_no_model() -> None:
    spec = {"space": {"engine": ["deepspeed"]}, "train": {"global_batch": 128}}
    values = domains(8, spec=spec, **LARGE)

    assert (values["engine"], values["tensor"], values["pipeline"]) == (("deepspeed",), (1,), (1,))


@pytest.mark.parametrize(
    ("facts", "tensor", "split"),
    [
        ({"tensor": TensorFacts(refusal="it has no plan")}, (1,), (False,)),
        ({"tensor": TensorFacts(divisors=(("heads", 12),))}, (1, 2, 4), (False, True)),
        ({"tensor": TensorFacts(sequence_refusal="no")}, (1, 2, 4, 8), (False,)),
    ],
)
def test_a_model_is_split_as_far_as_it_can_be(
    facts: dict[str, Any], tensor: tuple[int, ...], split: tuple[bool, ...]
) -> None:
    values = domains(8, **LARGE | facts)

    assert (values["tensor"], values["sequence_parallel"]) == (tensor, split)


def test_beyond_a_node_a_large_model_is_cut_into_stages_too() -> None:
    assert domains(16, **LARGE)["pipeline"] == (1, 2, 4, 8, 16)
    assert domains(16, **LARGE | {"pipeline_refusal": "two streams"})["pipeline"] == (1,)


def test_stages_on_gpus_wait_less_too() -> None:
    plans = searched(16, **LARGE).table
    whole = plans.is_value("pipeline", 1)

    assert set(plans.take(~whole).column("pipeline_schedule")) == {"1f1b", "interleaved", "zbv"}
    assert set(plans.take(whole).column("pipeline_schedule")) == {"1f1b"}


def test_beyond_a_node_weights_may_stay_within_it_until_backward() -> None:
    def kept(workers: int) -> set[int]:
        plans = searched(workers, **LARGE).table
        sharded = plans.is_value("zero_stage", 3) & plans.is_value("engine", "torch")
        return set(plans.take(sharded).column("reshard_ranks"))

    assert kept(8) == {0}
    assert kept(16) == {0, 8}


def test_beyond_a_node_states_are_split_within_nodes_too() -> None:
    """Nodes have 8 GPUs: 64 data ranks fill 8 nodes, or 16 nodes with tensor 2."""
    space = searched(64, **LARGE)

    assert replicas(space, tensor=1, pipeline=1, zero_stage=3) == {1, 2, 4, 8}
    assert replicas(space, tensor=2, pipeline=1, zero_stage=2) == {1, 2, 4, 8}
    assert replicas(space, tensor=8, pipeline=1, zero_stage=3) == {1, 2, 4}  # of one rank: DDP
    assert replicas(space, tensor=1, pipeline=1, zero_stage=0) == {1}
    assert domains(8, **LARGE)["replicas"] == (1,)


def replicas(space: Space, **knobs: int) -> set[int]:
    rows = [space.table.is_value(name, value) for name, value in knobs.items()]
    return set(space.table.take(np.logical_and.reduce(rows)).column("replicas").tolist())


def test_sixteen_thousand_gpus_are_searched_whole() -> None:
    """Includes the parallelism of Llama-3 405B: arXiv:2407.21783, table 4."""
    spec = {"train": {"global_batch": 2048, "precision": "bf16"}}
    large = {"parameters": 405_853_388_800, "blocks": 126}

    plans = searched(16384, spec=spec, **large).table

    known = {"tensor": 8, "pipeline": 16, "data": 128, "zero_stage": 2, "micro_batch": 1}
    rows = np.logical_and.reduce([plans.is_value(name, value) for name, value in known.items()])
    assert rows.any()
    assert set(plans.column("tensor") * plans.column("pipeline") * plans.column("data")) == {16384}


def test_one_gpu_that_is_too_small_offloads_through_deepspeed() -> None:
    values = domains(1, **LARGE)

    assert values["engine"] == ("torch", "deepspeed")
    assert values["offload_optimizer"] == ("none", "cpu")
    assert values["offload_parameters"] == ("none", "cpu")
    assert domains(1)["engine"] == ("torch",)


def test_what_does_not_fit_all_gpus_together_is_offloaded() -> None:
    values = domains(2, **LARGE)

    assert values["offload_optimizer"] == ("none", "cpu")
    assert values["pin_memory"] == (False, True)  # at rest, and where something is offloaded
    assert {plan.pin_memory for plan in searched(2, **LARGE).candidates if offloads(plan)} == {True}


def offloads(plan: Plan) -> bool:
    return "cpu" in (plan.offload_optimizer, plan.offload_parameters)


def test_two_cpu_ranks_search_little() -> None:
    values = domains(2, device="cpu")

    several = {name for name, offered in values.items() if len(offered) > 1}
    assert several == {"zero_stage", "micro_batch", "batching", "checkpoint_ratio", "attention"}


def test_rows_of_gpus_are_rounded_where_samples_differ_in_length() -> None:
    short = {"train": {"global_batch": 128, "precision": "bf16", "sequence_length": 96}}

    assert domains(8, vocab_size=100)["pad_multiple"] == (1, 64)
    assert domains(8, vocab_size=None)["pad_multiple"] == (1,)
    assert domains(8, vocab_size=100, spec=short)["pad_multiple"] == (1,)
    assert domains(8, vocab_size=100, spec={"data": {}})["pad_multiple"] == (1,)
    assert domains(8, vocab_size=100, device="cpu")["pad_multiple"] == (1,)


def test_tokens_are_limited_where_most_samples_are_short() -> None:
    train = {"global_batch": 128, "precision": "bf16", "sequence_length": 128}
    short, long = ({"train": train, "data": {"lengths": {32: many, 128: 1}}} for many in (9, 1))

    assert set(domains(8, spec=short)["micro_batch_tokens"]) == {0, 128, 256, 512, 1024}
    assert domains(8, spec=long)["micro_batch_tokens"] == (0,)
    assert domains(8, spec=short, device="cpu")["micro_batch_tokens"] == (0,)
    limited = {
        (plan.batching, plan.micro_batch_tokens / plan.micro_batch)
        for plan in searched(8, spec=short, vocab_size=100).candidates
        if plan.micro_batch_tokens
    }
    assert limited == {("grouped", 64.0)}


def test_flash_attention_is_searched_where_it_computes() -> None:
    three = {"attentions": ("sdpa", "eager", "flash_attention_2")}
    whole = {"train": {"global_batch": 128, "precision": "fp32"}}

    assert domains(8, **three)["attention"] == ("sdpa", "flash_attention_2")
    assert domains(8, spec=whole, **three)["attention"] == ("sdpa",)
