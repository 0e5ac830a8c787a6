"""Work of single operators, counted by hand."""

from typing import Any

import pytest
import torch

from workers.tracing.operators import NO_WORK, FusedCall, OperatorWork, work_of

aten = torch.ops.aten


def ones(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(shape, dtype=dtype)


def work(operator: Any, *args: Any, **kwargs: Any) -> OperatorWork:
    return work_of(operator, args, kwargs, operator(*args, **kwargs))


def test_attention_counts_heads_of_all_samples() -> None:
    query, key = ones(2, 4, 8, 16), ones(2, 4, 6, 16)

    found = work(aten._scaled_dot_product_flash_attention_for_cpu.default, query, key, key)

    assert found.attention == FusedCall(
        heads=8,
        queries=8,
        keys=6,
        head_size=16,
        value_size=16,
        causal=False,
        masked=False,
        element_bytes=4,
    )


@pytest.mark.parametrize(
    ("operator", "args", "size_bytes"),
    [
        (aten.add.Tensor, (ones(8, 4), ones(8, 4)), 3 * 128),
        (aten.add.Tensor, (ones(8, 4), ones(4).expand(8, 4)), 2 * 128 + 16),
        (aten._to_copy.default, (ones(8, 4),), 2 * 128),
        # a table is not read as a whole: rows out of it, their numbers, and the result
        (aten.embedding.default, (ones(1000, 4), torch.zeros(2, dtype=torch.long)), 32 + 16 + 32),
    ],
)
def test_traffic(operator: Any, args: tuple[Any, ...], size_bytes: int) -> None:
    found = work(operator, *args)

    assert found == OperatorWork(traffic_bytes=size_bytes, launches=1)


@pytest.mark.parametrize(
    ("operator", "args"),
    [
        (aten.t.default, (ones(2, 3),)),
        (aten.view.default, (ones(2, 3), [6])),
        (aten._unsafe_view.default, (ones(2, 3), [6])),
        (aten.empty.memory_format, ([2, 3],)),
    ],
)
def test_views_and_empty_memory_are_no_work(operator: Any, args: tuple[Any, ...]) -> None:
    assert work(operator, *args) == NO_WORK
