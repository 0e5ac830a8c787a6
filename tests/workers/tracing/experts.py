"""Small mixtures of experts: the presets' architectures with few and narrow layers."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

VOCABULARY = 128
_COMMON: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_experts_per_tok": 2,
    "vocab_size": VOCABULARY,
}
MIXTRAL: dict[str, Any] = {
    "name": "mixtral-8x7b",
    "config": _COMMON | {"intermediate_size": 96, "num_local_experts": 4},
}
QWEN: dict[str, Any] = {
    "name": "qwen3-30b-a3b",
    "config": _COMMON | {"intermediate_size": 96, "moe_intermediate_size": 48, "num_experts": 8},
}
GPT_OSS: dict[str, Any] = {
    "name": "gpt-oss-20b",
    "config": _COMMON | {"intermediate_size": 48, "num_local_experts": 8, "sliding_window": 16},
}
EXPERTS = {"mixtral": MIXTRAL, "qwen": QWEN, "gpt-oss": GPT_OSS}


class Allocated:
    """Bytes of torch's allocator, as its profiler reports them."""

    def __init__(self) -> None:
        self.left_bytes = 0
        self.peak_bytes = 0


@contextmanager
def allocations() -> Iterator[Allocated]:
    """Counts the bytes that the allocator hands out and takes back in real memory."""
    seen = Allocated()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        yield seen
    results = profiler.profiler.kineto_results  # type: ignore[union-attr]
    changes = [event for event in results.events() if event.name() == "[memory]"]
    for event in sorted(changes, key=lambda event: event.start_ns()):
        seen.left_bytes += event.nbytes()
        seen.peak_bytes = max(seen.peak_bytes, seen.left_bytes)


def without_gradients(module: torch.nn.Module) -> None:
    """Drops each gradient as soon as it exists, so that gradients take no memory."""

    def drop(weight: torch.Tensor) -> None:
        weight.grad = None

    for weight in module.parameters():
        weight.register_post_accumulate_grad_hook(drop)
