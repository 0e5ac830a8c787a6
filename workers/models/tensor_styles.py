"""The ways in which one module is split over tensor ranks, and the plans of our own.

The names are those of transformers (`transformers.distributed.tensor_parallel`), so that a plan
of an architecture's own is read as it stands.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, get_args

Style = Literal[
    "colwise",  # outputs are split, and stay so
    "packed_colwise",  # the same for gate and up in one projection
    "qkv_colwise",  # the same for query, key and value in one projection
    "rowwise",  # inputs are split, outputs summed
    "colwise_gather_output",  # outputs are split, then gathered
    "rowwise_split_input",  # whole inputs are split, outputs summed
    "embedding_rowwise",  # the vocabulary is split
    "heads",  # an embedding with one number per head: heads are split
    "replicated_with_grad_allreduce",  # whole weights, used by each rank on its own heads
]
STYLES: tuple[Style, ...] = get_args(Style)
ALIASES: Mapping[str, Style] = MappingProxyType(  # of transformers, older names
    {"colwise_rep": "colwise_gather_output", "rowwise_rep": "rowwise_split_input"}
)
PARTS: Mapping[Style, int] = MappingProxyType({"packed_colwise": 2, "qkv_colwise": 3})
COLUMN_STYLES = ("colwise", "packed_colwise", "qkv_colwise", "colwise_gather_output")
ROW_STYLES = ("rowwise", "rowwise_split_input")
VOCABULARY_STYLES = ("colwise_gather_output", "embedding_rowwise")  # outside the blocks

_BERT: dict[str, str] = {
    "**.layer.*.attention.self.query": "colwise",
    "**.layer.*.attention.self.key": "colwise",
    "**.layer.*.attention.self.value": "colwise",
    "**.layer.*.attention.output.dense": "rowwise",
    "**.layer.*.intermediate.dense": "colwise",
    "**.layer.*.output.dense": "rowwise",
}
_T5: dict[str, str] = {
    f"**.block.*.layer.*.{attention}.{name}": style
    for attention in ("SelfAttention", "EncDecAttention")
    for name, style in {
        "q": "colwise",
        "k": "colwise",
        "v": "colwise",
        "o": "rowwise",
        "relative_attention_bias": "heads",
    }.items()
} | {
    "**.block.*.layer.*.DenseReluDense.wi": "colwise",
    "**.block.*.layer.*.DenseReluDense.wi_0": "colwise",
    "**.block.*.layer.*.DenseReluDense.wi_1": "colwise",
    "**.block.*.layer.*.DenseReluDense.wo": "rowwise",
    "lm_head": "colwise_gather_output",
}
# by the architecture's model_type; transformers has no plan for these
OURS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "bert": _BERT | {"cls.predictions.decoder": "colwise_gather_output"},
        "roberta": _BERT | {"lm_head.decoder": "colwise_gather_output"},
        "gpt2": {
            "**.h.*.attn.c_attn": "qkv_colwise",
            "**.h.*.attn.c_proj": "rowwise",
            "**.h.*.mlp.c_fc": "colwise",
            "**.h.*.mlp.c_proj": "rowwise",
            "lm_head": "colwise_gather_output",
        },
        "opt": {
            "**.layers.*.self_attn.q_proj": "colwise",
            "**.layers.*.self_attn.k_proj": "colwise",
            "**.layers.*.self_attn.v_proj": "colwise",
            "**.layers.*.self_attn.out_proj": "rowwise",
            "**.layers.*.fc1": "colwise",
            "**.layers.*.fc2": "rowwise",
            "lm_head": "colwise_gather_output",
        },
        "t5": _T5,
    }
)
# numbers of heads, or of their outputs, that a module's forward reads: each rank has its share
LOCAL_COUNTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "GPT2Attention": ("num_heads", "split_size"),
        "OPTAttention": ("num_heads",),
        "T5Attention": ("n_heads", "inner_dim"),
    }
)
# model types whose blocks were seen to train with the sequence split between their projections:
# all that a block does outside them, it does to each token by itself
SEQUENCE_TYPES = frozenset(
    {"bert", "gpt2", "gpt_neox", "llama", "mistral", "opt", "qwen2", "qwen3", "roberta"}
)


def matches(pattern: str, name: str) -> bool:
    """Whether a module is meant: `*` is one part of a name, `**.` any beginning."""
    regex = re.escape(pattern).replace(r"\*\*\.", r"(?:.+\.)?").replace(r"\*", r"[^.]+")
    return re.fullmatch(regex, name) is not None
