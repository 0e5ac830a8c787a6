"""Plans train as a plain loop does: the change of each weight by two steps, one of them clipped.

Every layout of the engines and techniques on one model, and part of `make parity`: plans of some
architectures, one of each kind.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from search_spaces.specification.schema import SweepSpec
from tests.workers.launch import Groups
from tests.workers.parity.architectures import spec_of
from tests.workers.parity.comparison import Expected, Parity
from tests.workers.parity.functions import function_specs
from tests.workers.parity.layouts import COMMON, EXPORTS, FOR_FUNCTIONS, Knobs
from tests.workers.values import LLAMA

PIPELINE: Knobs = {"pipeline": 2, "data": 1}
TENSOR: Knobs = {"tensor": 2, "data": 1}
SEQUENCE: Knobs = {**TENSOR, "sequence_parallel": True}
DEEPSPEED: Knobs = {"engine": "deepspeed"}
WIDE: Knobs = {"data": 4, "zero_stage": 3, "micro_batch": 1}
CHUNKED: Knobs = {"loss": "chunked", "micro_batch": 1}  # micro-batches with unequal labels
PADDED: Knobs = {"vocab_multiple": 64, "micro_batch": 1}
TILED: Knobs = {"mlp_tiles": 4, "micro_batch": 2}
LIMITED: Knobs = {"micro_batch_tokens": 24, "micro_batch": 4, "batching": "grouped"}
KEPT: Knobs = {"gathered_between_passes": True}
RECOMPUTED: Knobs = {"checkpoint_ratio": 1.0}
SELECTIVE: Knobs = {"checkpoint_ratio": 0.5, "checkpoint_mode": "selective"}
# of five blocks one is kept, two recomputed selectively, one whole and one from the host
MIXED: Knobs = {"checkpoint_ratio": 0.8, "selective_blocks": 2, "offloaded_blocks": 1}
# one of two ranks for each engine and technique
BY_DEFAULT: dict[str, Knobs] = {
    "ddp, packed": {"batching": "packed"},
    "fsdp2, recomputed on the host": {"zero_stage": 3, **RECOMPUTED, "checkpoint_offload": True},
    "fsdp2, offloaded": {
        **{"zero_stage": 2, "offload_optimizer": "cpu", "offload_parameters": "cpu"},
        "optimizer": "adamw_fused",
    },
    "tensor, the sequence too": {
        **{**SEQUENCE, **SELECTIVE, "batching": "grouped", "pad_multiple": 8}
    },
    "fsdp2 in fp16": {"zero_stage": 3, "precision": "fp16"},
    "pipeline, interleaved": {
        **{**PIPELINE, "pipeline_schedule": "interleaved", "pad_multiple": 8}
    },
    "zero 2": {**DEEPSPEED, "zero_stage": 2},
    "chunked loss, zero 3": {**CHUNKED, **DEEPSPEED, "zero_stage": 3},
    "padded words, fsdp2": {**PADDED, "zero_stage": 3, **RECOMPUTED},
    "zero 3, second copy": {**WIDE, **DEEPSPEED, "reshard_ranks": 2},
    "mixed blocks, fsdp2": {**MIXED, "zero_stage": 3, "micro_batch": 1},
    "tiles, fsdp2": {**TILED, "zero_stage": 3, "checkpoint_ratio": 0.5},
    "tokens, fsdp2": {**LIMITED, "zero_stage": 3, **RECOMPUTED},
    "tokens, zero 3": {**LIMITED, **DEEPSPEED, "zero_stage": 3},
}
MORE: dict[str, Knobs] = {
    "one rank in fp16": {"data": 1, "precision": "fp16"},
    "ddp in fp16": {"precision": "fp16"},
    "pipeline in fp16": {**PIPELINE, "precision": "fp16"},
    "one rank": {"data": 1, "micro_batch": 8, "attention": "eager"},
    "ddp, one sample": {"micro_batch": 1, **SELECTIVE},
    "ddp, buckets of their own": {"bucket_mib": 1, "gradient_as_bucket_view": False},
    "ddp, static graph": {"micro_batch": 4, "ddp_static_graph": True, **RECOMPUTED},
    "fsdp2, gathered once a step": {"zero_stage": 2, "micro_batch": 1},
    "fsdp2, packed": {"zero_stage": 3, "batching": "packed", **SELECTIVE},
    "fsdp2, gathered ahead": {"zero_stage": 3, "prefetch_blocks": 2, "micro_batch": 1, **KEPT},
    "hybrid shard, gathered once a step": {**WIDE, "zero_stage": 2, "replicas": 2},
    "hybrid shard": {**WIDE, "replicas": 2, **KEPT},
    "weights kept by two ranks": {**WIDE, "reshard_ranks": 2, **KEPT},
    "tensor": {**TENSOR, "batching": "packed", "attention": "eager"},
    "tensor, ddp": {"tensor": 2, "data": 2},
    "tensor, zero 2": {"tensor": 2, "data": 2, "zero_stage": 2},
    "sequence, zero 3": {"tensor": 2, "data": 2, "zero_stage": 3, "sequence_parallel": True},
    "gpipe": {**PIPELINE, "pipeline_schedule": "gpipe", "micro_batch": 8},
    "1f1b": {**PIPELINE, "batching": "packed", **RECOMPUTED},
    "zero bubble": {**PIPELINE, "pipeline_schedule": "interleaved_zero_bubble"},
    "zbv": {**PIPELINE, "pipeline_schedule": "zbv", "batching": "packed"},
    "dualpipev": {**PIPELINE, "pipeline_schedule": "dualpipev"},
    "pipeline, ddp": {"pipeline": 2, "micro_batch": 1, "bucket_mib": 1},
    "interleaved, zero 2": {
        **{"pipeline": 2, "pipeline_schedule": "interleaved", "micro_batch": 1, "zero_stage": 2}
    },
    "pipeline, zero 3": {"pipeline": 2, "micro_batch": 1, "zero_stage": 3, **RECOMPUTED, **KEPT},
    "dualpipev, ddp": {"pipeline": 2, "pipeline_schedule": "dualpipev", "micro_batch": 1},
    "pipeline, sequence": {"pipeline": 2, **SEQUENCE, "micro_batch": 1},
    "zbv, sequence": {"pipeline": 2, **SEQUENCE, "micro_batch": 1, "pipeline_schedule": "zbv"},
    "tensor, pipeline, zero 2": {"pipeline": 2, "tensor": 2, "micro_batch": 1, "zero_stage": 2},
    "zero 0": {**DEEPSPEED, "checkpoint_ratio": 0.5},
    "zero 1": {**DEEPSPEED, "zero_stage": 1, "micro_batch": 1, "overlap": False},
    "zero 2, scattered gradients": {
        **{**DEEPSPEED, "zero_stage": 2, "micro_batch": 1, "bucket_mib": 1},
        "contiguous_gradients": False,
    },
    "chunked loss, one rank": {**CHUNKED, "data": 1},
    "chunked loss, one rank in fp16": {**CHUNKED, "data": 1, "precision": "fp16"},
    "chunked loss, ddp": {**CHUNKED, **RECOMPUTED},
    "chunked loss, fsdp2": {**CHUNKED, "zero_stage": 3, **SELECTIVE},
    "chunked loss, packed": {**CHUNKED, "zero_stage": 2, "batching": "packed"},
    "chunked loss, hybrid shard in fp16": {
        **{**CHUNKED, **WIDE, "replicas": 2, "precision": "fp16"}
    },
    "chunked loss, 1f1b": {**CHUNKED, **PIPELINE},
    "chunked loss, interleaved, zero 3": {
        **{**CHUNKED, "pipeline": 2, "pipeline_schedule": "interleaved", "zero_stage": 3}
    },
    "chunked loss, zero 2": {**CHUNKED, **DEEPSPEED, "zero_stage": 2},
    "padded words, one rank in fp16": {**PADDED, "data": 1, "precision": "fp16"},
    "padded words, ddp": {**PADDED, **SELECTIVE},
    "padded words, packed": {**PADDED, "zero_stage": 2, "batching": "packed"},
    "padded words, chunked, zero 2": {**PADDED, **CHUNKED, **DEEPSPEED, "zero_stage": 2},
    "padded words, 1f1b": {**PADDED, **PIPELINE},
    "padded words, zero 3": {**PADDED, **DEEPSPEED, "zero_stage": 3},
    "mixed blocks, ddp": {**MIXED, "batching": "packed"},
    "mixed blocks, 1f1b": {**MIXED, **PIPELINE, "micro_batch": 1},
    "mixed blocks, fsdp2, gathered once a step": {**MIXED, **KEPT, "zero_stage": 3},
    "mixed blocks, tensor": {**MIXED, **SEQUENCE},
    "mixed blocks, zero 3": {**MIXED, **DEEPSPEED, "zero_stage": 3},
    "tiles, one rank in fp16": {**TILED, "data": 1, "precision": "fp16"},
    "tiles, ddp": {**TILED, **CHUNKED},
    "tiles, ddp, static graph": {**TILED, "micro_batch": 4, "ddp_static_graph": True},
    "tiles, fsdp2, gathered once a step": {**TILED, "zero_stage": 2, "batching": "packed"},
    "tiles, 1f1b": {**TILED, **PIPELINE, **RECOMPUTED},
    "tiles, interleaved, zero 3": {
        **{**TILED, "pipeline": 2, "pipeline_schedule": "interleaved", "zero_stage": 3}
    },
    "tiles, zero 2": {**TILED, **DEEPSPEED, "zero_stage": 2},
    "tiles, zero 3": {**TILED, **DEEPSPEED, "zero_stage": 3, "checkpoint_ratio": 0.5},
    "tokens, one rank in fp16": {**LIMITED, "data": 1, "micro_batch": 8, "precision": "fp16"},
    "tokens, ddp": {**LIMITED, "micro_batch_tokens": 30, **SELECTIVE},
    "tokens, ddp, chunked loss": {**LIMITED, "loss": "chunked", "batching": "padded"},
    "tokens, fsdp2, gathered once a step": {**LIMITED, "zero_stage": 2},
    "tokens, fsdp2, kept gathered": {**LIMITED, "zero_stage": 3, **KEPT},
    "tokens, four ranks": {**LIMITED, **WIDE, "micro_batch": 2},
    "tokens, tensor": {**LIMITED, **SEQUENCE, "micro_batch": 8, "micro_batch_tokens": 60},
    "tokens, tensor, fsdp2": {**LIMITED, **SEQUENCE, "data": 2, "zero_stage": 3},
    "tokens, zero 1": {**LIMITED, **DEEPSPEED, "zero_stage": 1, "pad_multiple": 8},
    "tokens, zero 2, offloaded": {
        **{**LIMITED, **DEEPSPEED, "zero_stage": 2, "offload_optimizer": "cpu"},
        "optimizer": "adamw_fused",
    },
    "zero 3": {**DEEPSPEED, "zero_stage": 3, "prefetch_mib": 1, "batching": "grouped"},
}


@pytest.fixture(scope="module")
def parity() -> Iterator[Parity]:
    made = Parity()
    yield made
    made.stop()


@pytest.fixture(scope="module")
def expected() -> Expected:
    """A Llama whose head is tied to its embedding, and whose stages are of unequal depth."""
    model = LLAMA | {"config": LLAMA["config"] | {"num_hidden_layers": 5}}
    spec = spec_of("causal-lm", Path("none")).model_dump() | {"model": model}
    return Expected(SweepSpec.model_validate(spec))


@pytest.mark.parametrize(
    "knobs",
    [
        *(pytest.param(knobs, id=name) for name, knobs in BY_DEFAULT.items()),
        *(pytest.param(knobs, id=name, marks=pytest.mark.thorough) for name, knobs in MORE.items()),
    ],
)
def test_a_layout_trains_as_the_plain_loop(
    groups: Groups, expected: Expected, knobs: Knobs
) -> None:
    (row,) = Parity(groups).of_layouts("llama", expected, {"": knobs})

    assert (row.ending, row.detail) == ("same", "")


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("task", "model"),
    [
        ("causal-lm", "gpt2"),  # projections of one packed weight
        ("causal-lm", "mixtral"),
        ("masked-lm", "esm"),  # weights without a gradient
        ("masked-lm", "funnel"),  # layers in lists of lists; refused but for single samples
        ("seq2seq", "t5"),
        ("sequence-classification", "llama"),
    ],
)
def test_an_architecture_trains_as_the_plain_loop_or_is_refused(
    parity: Parity, task: str, model: str
) -> None:
    found = list(parity.of_model(task, model, COMMON))

    assert [each.layout for each in found] == list(COMMON)
    assert not [each for each in found if each.is_fault]
    assert any(each.ending == "same" for each in found)


@pytest.mark.parametrize(
    ("task", "model", "ending"),
    [
        ("causal-lm", "llama", "same"),
        pytest.param("masked-lm", "bert", "refused", marks=pytest.mark.thorough),
        pytest.param("seq2seq", "t5", "refused", marks=pytest.mark.thorough),
    ],
)
def test_exports_of_tensor_ranks_train_as_the_plain_loop(
    parity: Parity, task: str, model: str, ending: str
) -> None:
    layouts = {name: knobs for name, (_, knobs) in EXPORTS.items() if "tensor" in name}
    found = list(parity.of_model(task, model, layouts))

    assert [(each.ending, each.detail if each.is_fault else "") for each in found] == [
        (ending, "") for _ in layouts
    ]


SAME, REFUSED = {"same"}, {"refused"}
FUNCTIONS: dict[str, set[str]] = {
    "loss, class weights": SAME,  # by `targets`
    "module, heads by sample": SAME | REFUSED,  # which ranks use in passes of their own
    "module, scalar weight": SAME | REFUSED,  # DDP alone trains it
    "loss, contrastive": SAME | REFUSED | {"labelled"},  # by the micro-batch that the user says
    **dict.fromkeys(["loss, labels", "loss, sample weights", "loss, shifted inside"], SAME),
    **dict.fromkeys([f"loss, {one}" for one in ("mask", "samples", "ctc", "sum")], SAME),
    **dict.fromkeys(["loss, preferring", "loss, mapping", "module, namespace"], SAME),
    **dict.fromkeys(["module, double", "module, one head", "module, lists"], SAME),
    **{f"module, {one} weight": SAME | REFUSED for one in ("turned", "empty")},
    **{f"module, {one}": SAME | REFUSED for one in ("tied blocks", "complex")},
    **dict.fromkeys(["loss, variance", "loss, hardest"], SAME | REFUSED | {"labelled"}),
    "module, moving average": SAME | REFUSED | {"labelled"},
}
SPLIT = ("alone, padded", "alone, checkpoints", "ddp", "zero 3, checkpoints")


@pytest.mark.cases_by_default(2)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_trains_as_the_plain_loop_or_is_refused(parity: Parity, name: str) -> None:
    layouts = {layout: FOR_FUNCTIONS[layout] for layout in SPLIT}

    rows = list(parity.of_function(name, function_specs()[name], layouts))

    assert {row.ending for row in rows} == FUNCTIONS[name]
