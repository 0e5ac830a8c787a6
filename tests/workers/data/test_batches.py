"""Batches of a user's own function."""

from typing import Any

import pytest
import torch

from search_spaces.errors import ModelError
from search_spaces.specification.schema import ModelSpec, SweepSpec
from search_spaces.specification.sections import TrainSpec
from tests.plans import ddp_plan
from workers.models.built import BuiltModel, batch_source

SPEC = SweepSpec(model=ModelSpec(name="mine:make"), train=TrainSpec(global_batch=8))
PLAN = ddp_plan(micro_batch=2, accumulation=2, data=2)


def _built(batch_maker: Any) -> BuiltModel:
    return BuiltModel(
        module=torch.nn.Linear(2, 2),
        blocks=(),
        task="causal-lm",
        vocab_size=None,
        batch_maker=batch_maker,
    )


def test_ranks_share_the_numbers() -> None:
    source = batch_source(_built(lambda numbers: {"x": torch.tensor(numbers)}), SPEC)
    steps = [source.step(PLAN, rank, 3) for rank in range(2)]

    seen = [n for given in steps for batch in given.batches for n in batch.inputs["x"].tolist()]
    assert sorted(seen) == list(range(24, 32))
    assert [(given.targets, given.tokens) for given in steps] == [(8, 8), (8, 8)]
    assert {batch.targets for given in steps for batch in given.batches} == {2}


def test_token_ids_are_counted() -> None:
    source = batch_source(
        _built(lambda numbers: {"input_ids": torch.ones(len(numbers), 5, dtype=torch.long)}), SPEC
    )

    assert source.step(PLAN, 0, -1).tokens == 8 * 5


def test_something_else_than_a_mapping() -> None:
    source = batch_source(_built(lambda numbers: torch.ones(len(numbers))), SPEC)

    with pytest.raises(ModelError, match="the batch maker returned Tensor"):
        source.step(PLAN, 0, 0)
