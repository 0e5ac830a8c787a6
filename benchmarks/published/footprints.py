"""Footprints of runs, traced of a shipped preset of the same structure in the run's shape."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from benchmarks.published.families import FAMILIES
from benchmarks.published.values import Run, Shape
from search_spaces.costs.footprint import Split
from search_spaces.costs.plan_encoding import VariantKey
from search_spaces.plan import Attention
from search_spaces.specification.schema import SweepSpec

_NO_DROPOUT = frozenset(("mpt", "falcon", "gpt-neox", "phi", "nemotron"))
_FFN_MULTIPLE = 128
_LLAMA = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "output": "o_proj"}
_TARGETS: Mapping[str, Mapping[str, str]] = {
    "llama-3-8b": _LLAMA,
    "mixtral-8x7b": _LLAMA,
    "gpt2": {"query": "c_attn", "key": "c_attn", "value": "c_attn", "output": "c_proj"},
    "bert-large": {"query": "query", "key": "key", "value": "value", "output": "dense"},
}


class Model(NamedTuple):
    """The model that is traced: runs that share it share a footprint."""

    shape: Shape
    method: str
    lora_rank: int
    lora_targets: tuple[str, ...]


def model_of(run: Run) -> Model:
    """Returns the model to trace for a run."""
    return Model(run.shape, run.method, run.lora_rank, run.lora_targets)


def wanted_of(run: Run) -> VariantKey:
    """The variant that a run computes; flash attention is traced as sdpa."""
    layout = run.layout
    split: Split = "none"
    if layout.tensor > 1 or any(stage.tensor > 1 for stage in run.stages):
        split = "sequence" if layout.sequence_parallel else "tensor"
    attention: Attention = "eager" if layout.attention == "eager" else "sdpa"
    return VariantKey(attention, run.states.compute, split)


def preset_of(shape: Shape) -> str:
    """The preset whose structure is nearest.

    Encoders are BERT, mixtures of experts Mixtral. What has a gated MLP is Llama (RMSNorm, rotary
    positions, SwiGLU), what has not is GPT-2 (LayerNorm, GELU), unless several query heads share
    keys and values, which GPT-2 cannot: those are Llama with a feed-forward of two thirds, whose
    three matrices have the parameters and FLOPs of the two. Biases, the activation function and the
    place of norms are those of the preset.
    """
    if shape.family == "bert":
        return "bert-large"
    if shape.experts > 1:
        return "mixtral-8x7b"
    shared = shape.kv_heads != shape.heads or shape.head_size * shape.heads != shape.hidden
    return "llama-3-8b" if FAMILIES[shape.family].gated or shared else "gpt2"


def spec_of(model: Model) -> SweepSpec:
    """The specification to trace, for `workers.trace.trace`."""
    preset, shape = preset_of(model.shape), model.shape
    train: dict[str, Any] = {"global_batch": 1, "sequence_length": shape.seq_len}
    if model.method == "lora":
        names = (_TARGETS[preset][target] for target in model.lora_targets)
        targets = tuple(dict.fromkeys(names)) or "all-linear"
        # traced in fp32: `States` says how a run holds and casts frozen weights
        lora = {"rank": model.lora_rank, "target_modules": targets, "base": "fp32"}
        train |= {"method": "lora", "lora": lora}
    changes = {"bert-large": _as_bert, "gpt2": _as_gpt2}.get(preset, _as_llama)(shape)
    return SweepSpec.model_validate(
        {"model": {"name": preset, "task": shape.task, "config": changes}, "train": train}
    )


def _as_gpt2(shape: Shape) -> dict[str, Any]:
    # GPT-2's own code writes GELU out in eight operators; that of others has one
    gelu = "gelu_new" if shape.family == "gpt2" else "relu" if shape.family == "opt" else "gelu"
    dropout = dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), 0.0)
    return {
        "n_embd": shape.hidden,
        "n_head": shape.heads,
        "n_layer": shape.layers,
        "n_inner": shape.ffn,
        "activation_function": gelu,
        "n_positions": shape.seq_len,
        "vocab_size": shape.vocab,
        "tie_word_embeddings": shape.tied,
        **(dropout if shape.family in _NO_DROPOUT else {}),
    }


def _as_bert(shape: Shape) -> dict[str, Any]:
    return {
        "hidden_size": shape.hidden,
        "num_attention_heads": shape.heads,
        "num_hidden_layers": shape.layers,
        "intermediate_size": shape.ffn,
        "max_position_embeddings": max(512, shape.seq_len),
        "vocab_size": shape.vocab,
    }


def _as_llama(shape: Shape) -> dict[str, Any]:
    ffn = shape.ffn
    if not FAMILIES[shape.family].gated:
        ffn = max(1, round(2 * ffn / 3 / _FFN_MULTIPLE)) * _FFN_MULTIPLE
    return {
        "hidden_size": shape.hidden,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_size,
        "num_hidden_layers": shape.layers,
        "intermediate_size": ffn,
        "max_position_embeddings": shape.seq_len,
        "vocab_size": shape.vocab,
        "tie_word_embeddings": shape.tied,
        **({"num_local_experts": shape.experts} if shape.experts > 1 else {}),
        **({"num_experts_per_tok": shape.per_token} if shape.experts > 1 else {}),
    }
