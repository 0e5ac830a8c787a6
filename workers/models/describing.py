"""What a module on the meta device tells about how it may be split: the same for every source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import nn

from workers.models.autotp import autotp_refusal
from workers.models.stack import MakeInputs, stack_facts
from workers.models.tensor_plan import tensor_facts


def parallel_facts(
    module: nn.Module, tensor_plan: Mapping[str, str], inputs: MakeInputs | None = None
) -> dict[str, Any]:
    """Fields of `ModelFacts`.

    Args:
        module: A whole model.
        tensor_plan: What the specification gives, empty if nothing.
        inputs: Makes a batch for a model that does not take token ids.
    """
    stack = stack_facts(module, inputs)
    return {
        "block_parameters": stack.block_parameters,
        "embedding_parameters": stack.embedding_parameters,
        "head_parameters": stack.head_parameters,
        "pipeline_refusal": stack.refusal,
        "tensor": replace(tensor_facts(module, tensor_plan), autotp_refusal=autotp_refusal(module)),
    }
