"""Training method of a row, from its notes: all weights, or adapters and which."""

import re
from dataclasses import dataclass
from typing import Literal

from benchmarks.published.cells import Row, UnusableRowError
from benchmarks.published.values import Shape

_NAMED = (
    r"peft_type (\w+)",
    r"\bmethod=([a-z0-9_-]+)",
    r"\btuner=([a-z0-9_-]+)",
    r"\btask=([a-z0-9-]+)",
    r"\blora=(yes|no|/)",
    r"\bfinetune (\w+)",
    r"(?:^|; )(q?lora|adapter\w*|full)\b",
)
_FULL = {"full", "full-ft", "sft", "no", "/", "pre-training", "pretrain", "none"}
# Low-rank products beside frozen weights, whatever initialises or scales them.
_LIKE_LORA = re.compile(
    r"yes|(q|ada|ra|rs|long|rand|de|gra|g)?lora(-fa|-ga|\+)?|dora|loha|lokr|hira"
)
_CHOICES: tuple[tuple[str, ...], ...] = (
    ("query", "value"),
    ("query", "key", "value"),
    ("query", "key", "value", "output"),
    (),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """The weights that are trained; `targets` is empty for all linear layers of the blocks."""

    name: Literal["full", "lora"]
    rank: int = 0
    targets: tuple[str, ...] = ()


def method_of(row: Row, shape: Shape) -> Method:
    """Returns what a row trains: all, where nothing in it speaks of adapters.

    A rank that is not stated is 8, targets that are not are those that come nearest to the stated
    number of trainable parameters, else query and value.

    Source: defaults of peft's LoraConfig (r = 8) and of its target modules for Llama.

    Raises:
        UnusableRowError: If it is a method other than full training and low-rank adapters.
    """
    if not _has_adapters(row):
        return Method(name="full")
    rank = row.noted(r"\brank[ =](\d+)") or row.noted(r"\br=?(\d+)\b") or 8
    return Method(name="lora", rank=rank, targets=_targets(row, shape, rank))


def _has_adapters(row: Row) -> bool:
    for pattern in _NAMED:
        found = re.search(pattern, row.text("notes"))
        if found and found.group(1) in _FULL | {"performance"}:
            return False
        if found and _LIKE_LORA.fullmatch(found.group(1)):
            return True
        if found and found.group(1) not in {"of", "on", "the", "with", "and"}:
            raise UnusableRowError("adapters other than LoRA")
    return "base" in row.text("precision") or row.notes_have(r"\bq?lora\b")


def _targets(row: Row, shape: Shape, rank: int) -> tuple[str, ...]:
    trainable = row.noted(r"trainable (\d+)(?![.\d,])") or _with_commas(row)
    if trainable:
        return min(_CHOICES, key=lambda some: abs(_adapters(shape, rank, some) - trainable))
    if row.notes_have(r"\bq, ?k, ?v, ?o\b"):
        return ("query", "key", "value", "output")
    if row.notes_have(r"targets=all|all[- ]linear"):
        return ()
    return ("query", "value")


def _with_commas(row: Row) -> int | None:
    found = re.search(r"trainable (\d{1,3}(?:,\d{3})+)", row.text("notes"))
    return int(found.group(1).replace(",", "")) if found else None


def _adapters(shape: Shape, rank: int, targets: tuple[str, ...]) -> int:
    """Parameters of the adapters: rank x (inputs + outputs) of each matrix."""
    inner, outer = shape.heads * shape.head_size, shape.kv_heads * shape.head_size
    widths = {"query": inner, "key": outer, "value": outer, "output": inner}
    each = sum(
        shape.hidden + width for name, width in widths.items() if name in targets or not targets
    )
    if not targets:
        each += 3 * (shape.hidden + shape.ffn)
    return rank * each * shape.layers
