"""Model families: which structure a model's name stands for, and what a table may leave out."""

import re
from dataclasses import dataclass, replace
from typing import Literal

from benchmarks.published.cells import Row, UnusableRowError
from benchmarks.published.values import Shape


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Models of one structure.

    `words` is a pattern of names; `gated` means an MLP of three matrices; `modern` that its
    code uses fused attention where the device has it (2023 and later).
    """

    words: str
    vocab: int  # where the table has none
    gated: bool = True
    modern: bool = True
    tied: bool = False  # embedding and head, where parameters are not counted exactly
    head_size: int | None = None  # where it is not hidden / heads


# Vocabularies are those of the published config.json of the family's best-known model; GPT's is
# 50,257 rounded up to 128 x 8 as Megatron-LM pads it. The first that matches counts.
FAMILIES: dict[str, Family] = {
    "t5": Family(words=r"\bt5|\bbart|blenderbot|pegasus", vocab=32128, gated=False, modern=False),
    "bert": Family(words=r"bert", vocab=30522, gated=False, modern=False, tied=True),
    "opt": Family(words=r"\bopt[-_ ]?\d", vocab=50272, gated=False, modern=False, tied=True),
    "bloom": Family(words=r"bloom", vocab=250880, gated=False, modern=False, tied=True),
    "mpt": Family(words=r"\bmpt|mosaicgpt", vocab=50368, gated=False, tied=True),
    "falcon": Family(words=r"falcon", vocab=65024, gated=False, tied=True),
    "gpt-bigcode": Family(
        words=r"bigcode|santacoder|starcoder", vocab=49280, gated=False, tied=True
    ),
    "gpt-neox": Family(words=r"neox|pythia|stablelm-base|\bgpt-?j", vocab=50432, gated=False),
    "phi": Family(words=r"\bphi-?(1|2)", vocab=51200, gated=False),
    "nemotron": Family(words=r"nemotron-?(4|\d+b|15|340)", vocab=256000, gated=False),
    "gemma": Family(words=r"gemma", vocab=256000, tied=True, head_size=256),
    "qwen3": Family(words=r"qwen-?3", vocab=151936, head_size=128),
    "qwen": Family(words=r"qwen", vocab=151936),
    "chatglm": Family(words=r"chatglm|\bglm", vocab=65024),
    "baichuan": Family(words=r"baichuan", vocab=125696),
    "yi": Family(words=r"\byi-", vocab=64000),
    "mistral": Family(words=r"mi[sx]tral|zephyr", vocab=32000),
    "llama3": Family(words=r"llama-?_?3", vocab=128256),
    "phi3": Family(words=r"\bphi-?3", vocab=32064),
    "granite": Family(words=r"granite|powerlm", vocab=49152),
    "olmo": Family(words=r"olmo", vocab=50304),
    "deepseek": Family(words=r"deepseek|kimi", vocab=102400),
    "internlm": Family(words=r"internlm", vocab=103168),
    "llama": Family(words=r"llama|ziya|vicuna|alpaca", vocab=32000),
    "gpt2": Family(
        words=r"^(openai-community/)?gpt-?2(-?(small|medium|large|xl))?$",
        vocab=50257,
        gated=False,
        modern=False,
        tied=True,
    ),
    "gpt-oss": Family(words=r"gpt[- ]oss", vocab=201088),
    "gpt": Family(
        words=r"gpt|transformer_lm|megatron", vocab=51200, gated=False, modern=False, tied=True
    ),
}
_MIXTURE = (
    *("n_layers", "hidden", "n_heads", "n_kv_heads", "head_size"),
    *("ffn_hidden", "vocab", "experts", "per_token"),
)
# Mixtures of experts of which tables say no more than the name: what their config.json says, where
# an expert that all tokens use counts as one more of both. DeepSeek's projections of low rank have
# about as many weights as queries and results of 128 heads with one key and value.
_MIXTURES = {
    r"qwen3[-_]30b[-_]a3b": (48, 2048, 32, 4, 128, 768, 151936, 128, 8),
    r"qwen3[-_]235b[-_]a22b": (94, 4096, 64, 4, 128, 1536, 151936, 128, 8),
    r"gpt[- ]oss[- ]120b": (36, 2880, 64, 8, 64, 2880, 201088, 128, 4),
    r"deepseek-?v3": (61, 7168, 128, 1, 128, 2048, 129280, 257, 9),
    r"kimi_k2": (61, 7168, 128, 1, 128, 2048, 163840, 385, 9),
}
_EXPERTS = (
    r"\bmoe\b|-moe|mixtral|switch|\d+x\d+b|[-_]a\d+(\.\d+)?b\b|-a\d+m|kimi|gpt oss|gpt-oss"
    r"|deepseek-?v[234]|nemotron_3|deepseek-?moe|granite-4.*tiny|active"
)


def family_of(model: str) -> str:
    """The family of a model by its name.

    Raises:
        UnusableRowError: If the name says none, or more than one structure at once.
    """
    name = model.lower()
    if not name:
        raise UnusableRowError("no model")
    for family, facts in FAMILIES.items():
        if re.search(facts.words, name):
            return family
    raise UnusableRowError("model of no known family")


def experts_of(row: Row) -> tuple[int, int]:
    """Returns the number of experts and of those that a token uses; 1 and 1 for a dense model.

    Raises:
        UnusableRowError: If experts are not counted.
    """
    known = row.count("experts"), row.count("per_token")
    if known[0] and known[1]:
        return known[0], known[1]
    counted = re.search(r"\bmoe (\d+) experts top-(\d+)", row.text("notes"))
    if counted:
        return int(counted.group(1)), int(counted.group(2))
    if re.search(_EXPERTS, row.text("model")) or row.notes_have(r"\bmoe\b"):
        raise UnusableRowError("mixture of experts that are not counted")
    return 1, 1


def shape_of(row: Row) -> Shape:
    """The model's shape; what is left out is what its family usually has.

    Heads: hidden / 128 (Brown et al. 2020, table 2.1, for the larger models). Key-value heads:
    as many as heads. Feed-forward: 4 x hidden, or 8/3 x hidden in steps of 256 where gated
    (Touvron et al. 2023, section 2.2).

    Raises:
        UnusableRowError: If layers, width or sample length are not stated, or as `experts_of`.
    """
    row = _completed(row)
    experts, per_token = experts_of(row)
    layers, hidden = row.count("n_layers"), row.count("hidden")
    if layers is None or hidden is None:
        raise UnusableRowError("no model shape")
    seq_len = row.count("seq_len")
    if seq_len is None:
        raise UnusableRowError("no sequence length")
    family = family_of(row.written("model"))
    facts = FAMILIES[family]
    if family == "t5":
        raise UnusableRowError("encoder-decoder: the table has no target length")
    heads = row.count("n_heads") or max(1, hidden // 128)
    gated_width = -(-8 * hidden // 3 // 256) * 256
    shape = Shape(
        family=family,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=row.count("n_kv_heads") or heads,
        head_size=row.count("head_size") or facts.head_size or -(-hidden // heads),
        ffn=row.count("ffn_hidden") or (gated_width if facts.gated else 4 * hidden),
        vocab=row.count("vocab") or facts.vocab,
        tied=facts.tied,
        seq_len=seq_len,
        task=_task_of(row, family),
        experts=experts,
        per_token=per_token,
    )
    return _tied_by_count(shape, row.count("n_params"))


def matmul_weights(shape: Shape, *, of_all_experts: bool = False) -> int:
    """Weights that multiply a token: blocks and head, the embedding apart."""
    experts = shape.experts if of_all_experts else shape.per_token
    gates = 3 if FAMILIES[shape.family].gated else 2
    inner, outer = shape.heads * shape.head_size, shape.kv_heads * shape.head_size
    block = shape.hidden * (2 * inner + 2 * outer + gates * experts * shape.ffn)
    return shape.layers * block + shape.vocab * shape.hidden


def _completed(row: Row) -> Row:
    """The row with the shape of a mixture of experts that is known by its name."""
    for words, shape in _MIXTURES.items():
        if re.search(words, row.text("model")):
            return Row({**row.cells, **dict(zip(_MIXTURE, map(str, shape), strict=True))})
    return row


def _tied_by_count(shape: Shape, parameters: int | None) -> Shape:
    """Tied where the stated parameters leave no room for two embeddings; gated families only."""
    if parameters is None or not FAMILIES[shape.family].gated:
        return shape
    once = matmul_weights(shape, of_all_experts=True)
    tied = abs(parameters - once) < abs(parameters - once - shape.vocab * shape.hidden)
    return replace(shape, tied=tied)


def _task_of(row: Row, family: str) -> Literal["causal-lm", "masked-lm", "sequence-classification"]:
    """Returns the task; an encoder's is to label sentences where notes or name say so."""
    if family != "bert":
        return "causal-lm"
    told = f"{row.text('model')} {row.text('notes')}"
    labels = re.search(r"classif|glue|mnli|mrpc|squad|\bsst", told)
    return "sequence-classification" if labels else "masked-lm"
