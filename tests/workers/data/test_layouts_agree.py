"""The decisive test: a global batch is the same optimisation problem under every layout.

Real models and real English text, in fp32 on the CPU: loss and gradient of a step equal those
of the plain padded batch, for every batching, micro-batch and number of ranks.
"""

import pydoc_data.topics
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from search_spaces.plan import Attention, Plan
from search_spaces.specification.schema import DataSpec, ModelSpec, SweepSpec
from search_spaces.specification.sections import TrainSpec
from tests.plans import ddp_plan
from tests.workers.models.tiny_models import TINY_BERT, TINY_GPT2, TINY_LLAMA
from workers.data.batches import BatchSource
from workers.models.built import BuiltModel, batch_source
from workers.models.load import build_whole

GLOBAL_BATCH, SEQUENCE_LENGTH = 16, 96
BATCHINGS = ("padded", "rounded", "grouped", "packed", "limited")
RELATIVE = 2e-5  # fp32 sums in another order
SHAPES = [(16, 1, 1), (4, 4, 1), (4, 2, 2), (1, 4, 4), (2, 8, 1)]
TRAIN = TrainSpec(global_batch=GLOBAL_BATCH, sequence_length=SEQUENCE_LENGTH)


def _plan(shape: tuple[int, int, int], batching: Any, attention: Attention = "sdpa") -> Plan:
    """Returns a plan; `rounded` are padded rows of a multiple of 8 tokens, `limited` by tokens."""
    micro_batch, accumulation, data = shape
    layout = {"micro_batch": micro_batch, "accumulation": accumulation, "data": data}
    if batching == "rounded":
        layout, batching = layout | {"pad_multiple": 8}, "padded"
    if batching == "limited":
        layout, batching = layout | {"micro_batch_tokens": SEQUENCE_LENGTH}, "grouped"
    return ddp_plan(**layout, batching=batching, attention=attention)


@pytest.fixture(scope="module")
def english(tmp_path_factory: pytest.TempPathFactory) -> str:
    path: Path = tmp_path_factory.mktemp("english") / "topics.txt"
    path.write_text("\n\n".join(pydoc_data.topics.topics.values()), "utf-8")
    return str(path)


@cache
def _built(name: str, attention: Attention) -> BuiltModel:
    specs = {"llama": TINY_LLAMA, "gpt2": TINY_GPT2, "bert": TINY_BERT}
    return build_whole(specs[name], TRAIN, attention=attention)


def _spec(model: ModelSpec, english: str) -> SweepSpec:
    return SweepSpec(model=model, data=DataSpec(files=(english,)), train=TRAIN)


def _step(
    built: BuiltModel, source: BatchSource, plan: Plan, step: int
) -> tuple[float, torch.Tensor, int, int]:
    """Loss, one gradient, samples and tokens of a whole step, over all ranks in turn."""
    built.module.zero_grad()
    loss, samples, tokens = 0.0, 0, 0
    for rank in range(plan.data):
        given = source.step(plan, rank, step)
        for batch in given.batches:
            part = built.module(**batch.inputs).loss * (batch.targets / given.targets)
            part.backward()
            loss += part.item()
            samples, tokens = samples + batch.samples, tokens + batch.tokens
    assert tokens == given.tokens
    gradient = next(iter(built.blocks[0].parameters())).grad
    assert gradient is not None
    return loss, gradient.clone(), samples, tokens


def assert_layouts_agree(
    built: BuiltModel,
    source: BatchSource,
    step: int,
    batchings: tuple[str, ...],
    attention: Attention = "sdpa",
    relative: float = RELATIVE,
) -> None:
    """Checks every shape and batching against the padded batch of all samples."""
    whole = _plan(SHAPES[0], "padded", attention)
    loss, gradient, _, tokens = _step(built, source, whole, step)
    for shape, batching in product(SHAPES, batchings):
        plan = _plan(shape, batching, attention)
        found = _step(built, source, plan, step)
        assert found[0] == pytest.approx(loss, rel=relative), plan
        torch.testing.assert_close(found[1], gradient, rtol=1e-3, atol=1e-5)
        assert found[2:] == (GLOBAL_BATCH, tokens)


@pytest.mark.cases_by_default(2)
@pytest.mark.parametrize(
    ("step", "name", "attention"),
    [(0, "llama", "eager"), (0, "gpt2", "sdpa"), (-1, "llama", "sdpa"), (-1, "gpt2", "eager")],
)
def test_causal_losses_agree(step: int, name: str, attention: Attention, english: str) -> None:
    built = _built(name, attention)
    source = batch_source(built, _spec(TINY_LLAMA, english))

    assert_layouts_agree(built, source, step, BATCHINGS, attention)


def test_masked_losses_agree(english: str) -> None:
    built = _built("bert", "sdpa")
    source = batch_source(built, _spec(TINY_BERT, english))

    assert_layouts_agree(built, source, 3, ("rounded", "grouped"))


def test_a_packed_row_that_is_not_kept_apart_would_show(english: str) -> None:
    """Check of the check: without restarting positions the loss differs.

    The size of the difference depends on the text, which varies with Python's version.
    """
    built = _built("llama", "sdpa")
    source = batch_source(built, _spec(TINY_LLAMA, english))
    plan = _plan((16, 1, 1), "packed")
    (batch,) = source.step(plan, 0, 0).batches
    joined = {name: tensor for name, tensor in batch.inputs.items() if name != "position_ids"}

    with torch.no_grad():
        apart, together = built.module(**batch.inputs).loss, built.module(**joined).loss

    assert abs(apart - together) > 10 * RELATIVE * apart


@pytest.mark.parametrize("task", ["sequence-classification", "seq2seq"])
def test_losses_of_other_tasks_agree(task: Any, english: str, tmp_path: Path) -> None:
    model = TINY_LLAMA.model_copy(update={"task": task})
    if task == "seq2seq":
        (tmp_path / "config.json").write_text(
            '{"model_type": "t5", "d_model": 32, "d_ff": 64, "d_kv": 8, "num_heads": 4,'
            ' "num_layers": 2, "vocab_size": 512, "decoder_start_token_id": 0, "dropout_rate": 0.0}'
        )
        model = ModelSpec(name=str(tmp_path), task=task)
    built = build_whole(model, TRAIN, attention="eager")
    source = batch_source(built, _spec(model, english))

    assert_layouts_agree(built, source, 0, ("grouped", "rounded"), relative=1e-4)
