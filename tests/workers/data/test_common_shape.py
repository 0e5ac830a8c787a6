"""Micro-batches padded to one shape."""

from __future__ import annotations

import torch

from workers.data.collate import MicroBatch, pad_to_common_shape


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


def test_a_class_for_each_row_has_no_columns() -> None:
    narrow = a_batch(input_ids=[[5, 6]], attention_mask=[[1, 1]], labels=[1])
    wide = a_batch(input_ids=[[1, 2, 3]], attention_mask=[[1, 1, 1]], labels=[0])

    filled, _ = pad_to_common_shape([narrow, wide])

    assert filled.inputs["labels"].tolist() == [1]
