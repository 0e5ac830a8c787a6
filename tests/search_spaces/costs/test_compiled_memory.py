"""Bytes that compiled blocks save for backward, against those of torch's own partitioner."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from search_spaces.costs.footprint import Compute
from search_spaces.costs.memory import MemoryCoefficients
from search_spaces.costs.plan_encoding import VariantKey
from search_spaces.specification.schema import SweepSpec
from workers.tracing.trace import trace

ROWS, TOKENS = 4, 512
WIDTH, LAYERS, HEADS, VOCABULARY = 256, 2, 8, 512
LLAMA: dict[str, Any] = {
    "hidden_size": WIDTH,
    "intermediate_size": 4 * WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": 2,
    "head_dim": WIDTH // HEADS,
    "vocab_size": VOCABULARY,
}
GPT2: dict[str, Any] = {
    "n_embd": WIDTH,
    "n_head": HEADS,
    "n_layer": LAYERS,
    "vocab_size": VOCABULARY,
    "attn_pdrop": 0.0,
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
}
MODELS = {
    "llama-3.2-1b": (LLAMA, lambda: LlamaForCausalLM(LlamaConfig(**LLAMA)).model.layers),
    "gpt2": (GPT2, lambda: GPT2LMHeadModel(GPT2Config(**GPT2)).transformer.h),
}


def saved_bytes(blocks: Any, *, compiled: bool, compute: Compute) -> int:
    """Returns the bytes that autograd keeps of a pass through blocks, without their weights."""
    torch._dynamo.reset()
    if compiled:
        for block in blocks:
            block.compile()
    weights = {weight.untyped_storage().data_ptr() for weight in blocks.parameters()}
    kept: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    head = WIDTH // HEADS
    positions = torch.ones(1, TOKENS, head), torch.zeros(1, TOKENS, head)
    hidden: Any = torch.randn(ROWS, TOKENS, WIDTH, requires_grad=True)
    is_llama = "Llama" in type(blocks[0]).__name__
    extra = {"position_embeddings": positions} if is_llama else {}
    with (
        torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor),
        torch.autocast("cpu", dtype=torch.bfloat16, enabled=compute == "autocast"),
    ):
        for block in blocks:
            hidden = block(hidden, **extra)
            hidden = hidden[0] if isinstance(hidden, tuple) else hidden
    return sum(kept.values())


@pytest.mark.thorough
@pytest.mark.parametrize("compute", ["fp32", "autocast"])
@pytest.mark.parametrize("name", MODELS)
def test_compiled_blocks_save_about_the_share_that_forecasts_take(
    name: str, compute: Compute, tmp_path: Path
) -> None:
    config, make = MODELS[name]
    spec = SweepSpec.model_validate(
        {
            "model": {"name": name, "config": config},
            "train": {"global_batch": ROWS, "sequence_length": TOKENS},
        }
    )
    variant = trace(
        spec, [VariantKey("sdpa", compute, "none")], device="cpu", cache=tmp_path
    ).variants[0]
    parts = [(len(kind.indices), kind.part) for kind in variant.blocks]
    eager = sum(count * part.saved_bytes.at(ROWS, 1) for count, part in parts)
    kept = sum(count * part.kept_bytes.at(ROWS, 1) for count, part in parts)
    blocks = make().train()

    less = saved_bytes(blocks, compiled=False, compute=compute) - saved_bytes(
        blocks, compiled=True, compute=compute
    )

    share = 1 - less / (eager - kept)
    assert share == pytest.approx(MemoryCoefficients().compiled_saved, abs=0.13)
