"""Which architectures DeepSpeed's AutoTP trains right: those that were shown to."""

from __future__ import annotations

from torch import nn

# tests/workers/engines/test_autotp.py shows it of each
_TRAINED = frozenset(
    {
        "BertForMaskedLM",
        "GPTNeoXForCausalLM",
        "LlamaForCausalLM",
        "OPTForCausalLM",
        "Qwen2ForCausalLM",
        "Qwen3ForCausalLM",
        "RobertaForMaskedLM",
    }
)
_REFUSED = {
    "GPT2LMHeadModel": "DeepSpeed's AutoTP names GPT-2 among the models that it does not support"
    " (deepspeed/module_inject/auto_tp.py:AutoTP.supported)",
    "T5ForConditionalGeneration": "DeepSpeed's AutoTP leaves slices of position biases out of the"
    " gradient's length, so that clipping goes wrong"
    " (deepspeed/module_inject/auto_tp.py:AutoTP._slice_embedding)",
}


def autotp_refusal(module: nn.Module) -> str | None:
    """Why AutoTP may not split the module, None if it may.

    Source:
        DeepSpeed 0.19.8, named in each reason.
    """
    name = type(module).__name__
    if name in _TRAINED:
        return None
    unknown = f"{name} was not shown to train under DeepSpeed's AutoTP as it does alone"
    return _REFUSED.get(name, unknown)
