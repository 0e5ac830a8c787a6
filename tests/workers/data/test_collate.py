"""The tensors of one micro-batch, and micro-batches padded to one shape."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from search_spaces.plan import Batching
from search_spaces.specification.schema import Task
from workers.data.collate import (
    Layout,
    MicroBatch,
    collate,
    mask,
    pad_to_common_shape,
    target_count,
)

IGNORED = -100


def _layout(task: Task, batching: Batching = "padded", sequence_length: int = 64) -> Layout:
    return Layout(
        task=task,
        batching=batching,
        sequence_length=sequence_length,
        vocab_size=100,
        mask_token_id=99,
        seed=0,
    )


def _samples(*lengths: int) -> list[Any]:
    return [np.arange(1, length + 1, dtype=np.int32) for length in lengths]


def test_padded_causal() -> None:
    batch = collate((0, 1), _samples(4, 2), _layout("causal-lm"))

    assert batch.inputs["input_ids"].tolist() == [[1, 2, 3, 4], [1, 2, 0, 0]]
    assert batch.inputs["attention_mask"].tolist() == [[1, 1, 1, 1], [1, 1, 0, 0]]
    assert batch.inputs["labels"].tolist() == [[1, 2, 3, 4], [1, 2, IGNORED, IGNORED]]
    assert (batch.samples, batch.tokens, batch.targets) == (2, 6, 4)


def test_rows_rounded_to_a_multiple() -> None:
    tasks: dict[Task, list[list[int]]] = {  # hand-computed: of 9 and 3 tokens, 4 and 5 of a half
        "causal-lm": [[2, 16]] * 3,
        "masked-lm": [[2, 16]] * 3,
        "sequence-classification": [[2, 16], [2, 16], [2]],
        "seq2seq": [[2, 8]] * 3,
    }
    for task, shapes in tasks.items():
        layout = replace(_layout(task), multiple=8)
        batch = collate((0, 1), _samples(9, 3), layout)
        exact = collate((0, 1), _samples(9, 3), _layout(task))
        assert [list(rows.shape) for rows in batch.inputs.values()] == shapes, task
        assert batch.inputs["attention_mask"].sum() == exact.inputs["attention_mask"].sum()
        labels = (each.inputs["labels"] for each in (batch, exact))
        assert len({int((rows != IGNORED).sum()) for rows in labels}) == 1
        assert (batch.samples, batch.tokens, batch.targets) == (2, 12, exact.targets)


def test_packed_causal() -> None:
    batch = collate((0, 1, 2), _samples(5, 3, 2), _layout("causal-lm", "packed", 6))

    assert set(batch.inputs) == {"input_ids", "position_ids", "labels"}
    assert batch.inputs["input_ids"].tolist() == [[1, 2, 3, 4, 5], [1, 2, 3, 1, 2]]
    assert batch.inputs["position_ids"].tolist() == [[0, 1, 2, 3, 4], [0, 1, 2, 0, 1]]
    assert batch.inputs["labels"].tolist() == [[IGNORED, 2, 3, 4, 5], [IGNORED, 2, 3, IGNORED, 2]]
    assert (batch.samples, batch.tokens, batch.targets) == (3, 10, 7)


def test_what_fills_a_packed_row_up_is_apart() -> None:
    batch = collate((0, 1), _samples(5, 2), _layout("causal-lm", "packed", 5))

    assert batch.inputs["position_ids"].tolist()[1] == [0, 1, 0, 1, 2]
    assert batch.inputs["labels"].tolist()[1] == [IGNORED, 2, IGNORED, IGNORED, IGNORED]


@given(
    lengths=st.lists(st.integers(2, 30), min_size=1, max_size=12),
    case=st.sampled_from(
        [
            ("causal-lm", "padded"),
            ("causal-lm", "packed"),
            ("masked-lm", "grouped"),
            ("seq2seq", "padded"),
        ]
    ),
)
def test_targets_are_the_labels_that_count(lengths: list[int], case: Any) -> None:
    task, batching = case
    batch = collate(range(len(lengths)), _samples(*lengths), _layout(task, batching))
    labels = batch.inputs["labels"]

    counted = labels[:, 1:] if task == "causal-lm" else labels  # the model shifts
    assert int((counted != IGNORED).sum()) == batch.targets
    assert batch.targets == sum(target_count(task, length) for length in lengths) > 0
    assert batch.tokens == sum(lengths)


def test_masks_do_not_depend_on_the_layout() -> None:
    samples = _samples(40, 20, 30)
    layout = _layout("masked-lm")
    whole = collate((7, 8, 9), samples, layout).inputs
    alone = collate((8,), samples[1:2], layout).inputs

    assert whole["input_ids"][1, :20].tolist() == alone["input_ids"][0].tolist()
    assert whole["labels"][1, :20].tolist() == alone["labels"][0].tolist()


def test_masking_follows_bert() -> None:
    tokens = np.full(100_000, 5, dtype=np.int32)

    layout = replace(_layout("masked-lm"), vocab_size=50_000, mask_token_id=3)
    hidden, labels = mask(tokens, 0, layout)

    chosen = labels != IGNORED
    assert chosen.sum() == 15_000
    assert (labels[chosen] == 5).all()
    assert (hidden[~chosen] == 5).all()
    assert (hidden[chosen] == 3).mean() == pytest.approx(0.8, abs=0.02)
    assert (hidden[chosen] == 5).mean() == pytest.approx(0.1, abs=0.02)


def test_classes_are_the_samples_own() -> None:
    layout = _layout("sequence-classification")
    labels = collate(range(50), _samples(*[3] * 50), layout).inputs["labels"]

    assert set(labels.tolist()) == {0, 1}
    assert collate((17,), _samples(3), layout).inputs["labels"].item() == labels[17]


def a_batch(**inputs: list[list[int]] | list[int]) -> MicroBatch:
    tensors = {name: torch.tensor(rows) for name, rows in inputs.items()}
    return MicroBatch(inputs=tensors, samples=1, tokens=2, targets=3)


def test_columns_that_are_added_are_masked_and_have_no_labels() -> None:
    narrow = a_batch(input_ids=[[5, 6]], attention_mask=[[1, 1]], labels=[[5, 6]])
    wide = a_batch(input_ids=[[1, 2, 3]], attention_mask=[[1, 1, 1]], labels=[[1, 2, 3]])

    filled, kept = pad_to_common_shape([narrow, wide])

    assert filled.inputs["input_ids"].tolist() == [[5, 6, 0]]
    assert filled.inputs["attention_mask"].tolist() == [[1, 1, 0]]
    assert filled.inputs["labels"].tolist() == [[5, 6, -100]]
    assert (filled.samples, filled.tokens, filled.targets) == (1, 2, 3)
    assert {name: rows.tolist() for name, rows in kept.inputs.items()} == {
        name: rows.tolist() for name, rows in wide.inputs.items()
    }


def test_what_is_added_to_packed_rows_is_a_sample_of_its_own() -> None:
    small = a_batch(input_ids=[[5, 6, 7]], position_ids=[[0, 1, 0]], labels=[[-100, 6, -100]])
    large = a_batch(
        input_ids=[[1] * 5] * 2, position_ids=[[0, 1, 2, 3, 4]] * 2, labels=[[1] * 5] * 2
    )

    filled, _ = pad_to_common_shape([small, large])

    assert filled.inputs["position_ids"].tolist() == [[0, 1, 0, 0, 1], [0, 1, 2, 3, 4]]
    assert filled.inputs["input_ids"].tolist() == [[5, 6, 7, 0, 0], [0] * 5]
    assert filled.inputs["labels"].tolist() == [[-100, 6, -100, -100, -100], [-100] * 5]
