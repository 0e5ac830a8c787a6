"""What a module on the meta device tells about how it may be split: the same for every source."""

from __future__ import annotations

from typing import Any

from torch import nn

from workers.models.stack import stack_facts
from workers.models.tensor_plan import tensor_facts


def parallel_facts(module: nn.Module) -> dict[str, Any]:
    """Fields of `ModelFacts`."""
    stack = stack_facts(module)
    return {
        "block_parameters": stack.block_parameters,
        "embedding_parameters": stack.embedding_parameters,
        "head_parameters": stack.head_parameters,
        "pipeline_refusal": stack.refusal,
        "tensor": tensor_facts(module),
    }
