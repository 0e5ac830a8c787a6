"""Bytes that belong to a parameter, from the columns precision and optimizer.

Sources of the rules:
    fp32 weights under autocast, FSDP's mixed precision and JAX: weights 4, gradients 4, moments 8
    (torch.amp; torch FSDP's MixedPrecision leaves the sharded weights as they are).
    accelerate's FSDP under mixed precision: trained weights in 16 bits are cast to fp32 first
    (`Accelerator.prepare_model`, "Upcasted low precision parameters").
    DeepSpeed: 2, 2 and 12: fp32 copy and moments (Rajbhandari et al. 2020, arXiv:1910.02054,
    figure 1); 4 of gradients where they are accumulated in fp32.
    Megatron-LM: bf16 2, 4 and 12, fp16 2, 2 and 16 (docs/source/api-guide/dist_optimizer.md).
    Pure 16 bit: 2, 2 and 4, nothing is kept in fp32.
    Quantised bases: NF4 with blocks of 64 is 4.5 bits, its constants quantised too 4.127 (Dettmers
    et al. 2023, arXiv:2305.14314, section 3); GPTQ in groups of 128 is 4.16.
"""

import re

from benchmarks.published.cells import Row
from benchmarks.published.devices import OLD
from benchmarks.published.methods import Method
from benchmarks.published.values import Engine, Generation, Kind, States

_PURE = r"no autocast|16[- ]true"
_HELD_IN_16 = r"16 (weights|\+ autocast)"  # autocast over them changes nothing
_MIXED = r"amp|autocast|mix|master|\bo[12]\b|mp mode|/pure|/default|fp32 grad"
# Moments of a trained parameter in fp32, by a word of the optimizer's cell; Adam's two else.
_MOMENTS = (
    (r"none|forward\+backward", "none", 0.0),
    (r"8-?bit", "adam8bit", 2.0),
    (r"adafactor", "adafactor", 0.0),  # a row and a column of each matrix
    (r"muon", "muon", 4.0),
    (r"lion", "lion", 4.0),
    (r"\bsgd", "sgd", 4.0),
    (r"lamb", "lamb", 8.0),
)
Held = tuple[float, float, float]  # weights, gradients, fp32 copies; bytes of one parameter


def kind_of(row: Row, engine: Engine, generation: Generation) -> Kind:
    """The number format of matmuls.

    Where only 16 bits or a mix are named it is bf16 on devices that have it. An empty cell is
    16 bits (fp16 for Megatron on devices before Hopper, whose published runs are of 2021), but fp32
    for a plain loop on devices without bf16, the default of PyTorch.
    """
    words = row.text("precision")
    half: Kind = "fp16" if generation in OLD else "bf16"
    if not words:
        plain = engine in {"hf", "ddp"} and generation in OLD
        megatron = engine.startswith("megatron") and generation == "ampere"
        return "fp32" if plain else "fp16" if megatron else half
    named: tuple[tuple[str, Kind], ...] = (
        (r"nvfp4|\bfp4", "nvfp4"),
        (r"fp8|float8", "fp8"),
        (r"tf32(?! setting)", "tf32"),
        (r"bf16.*fp16|fp16.*bf16", half),
        (r"bf16|bfloat16", "bf16"),
        (r"fp16|float16", "fp16"),
        (r"16|amp|mix|base|int[48]", half),
    )
    return next((kind for pattern, kind in named if re.search(pattern, words)), "fp32")


def states_of(row: Row, engine: Engine, generation: Generation, method: Method) -> States:
    """Returns how a row holds parameters; see the sources above."""
    kind = kind_of(row, engine, generation)
    optimizer, moments = _moments(row)
    pure = _is_pure(row, engine, kind, method)
    if method.name == "lora" and not pure and engine in {"hf", "ddp", "fsdp"}:
        held: Held = (4.0, 4.0, 0.0)  # peft casts adapters to fp32
    else:
        held = (2.0, 2.0, 0.0) if pure else _held(row, engine, kind)
    if pure and optimizer in {"adam", "lamb"}:
        moments /= 2
    bits, frozen = _frozen(row, kind, held, method)
    exact = kind in {"fp32", "tf32"}
    whole = held[0] == 4.0 and engine in {"hf", "ddp"} and frozen == 4.0
    return States(
        compute="fp32" if exact else "autocast" if whole else "cast",
        kind=kind,
        weight_bytes=held[0],
        gradient_bytes=held[1],
        state_bytes=0.0 if optimizer == "none" else held[2] + moments,
        frozen_bytes=frozen,
        frozen_bits=bits,
        optimizer=optimizer,
    )


def _held(row: Row, engine: Engine, kind: Kind) -> Held:
    words = row.text("precision")
    if kind in {"fp32", "tf32"}:
        return 4.0, 4.0, 0.0
    if engine == "megatron":
        return (2.0, 2.0, 8.0) if kind == "fp16" else (2.0, 4.0, 4.0)
    if engine in {"deepspeed", "megatron-deepspeed"}:
        return 2.0, 4.0 if "fp32 grad" in words else 2.0, 4.0
    if engine == "other" or (engine != "fsdp" and re.search(r"master|\bo2\b", words)):
        return 2.0, 2.0, 4.0
    return 4.0, 4.0, 0.0


def _is_pure(row: Row, engine: Engine, kind: Kind, method: Method) -> bool:
    """Returns whether all is 16 bit: said so, or plain bf16, unsharded, no word of a mix."""
    words = row.text("precision")
    if kind not in {"bf16", "fp16"} or re.search(r"fp32 adapter", words):
        return False
    if re.search(_PURE, words):
        return True
    if method.name == "full" and re.search(_HELD_IN_16, words):
        return engine != "fsdp"
    plain = kind == "bf16" and bool(words) and not re.search(_MIXED, words)
    return plain and method.name == "full" and engine in {"hf", "ddp"}


def _frozen(row: Row, kind: Kind, held: Held, method: Method) -> tuple[int | None, float]:
    words = f"{row.text('precision')} "
    if method.name == "full":
        return None, held[0]
    if re.search(r"int8|8-?bit base", words):
        return 8, 1.0
    if re.search(r"nf4|fp4|int4|4-?bit|gptq|awq", words) and "base" in words:
        per = 4.127 if "dq" in words else 4.16 if "gptq" in words else 4.5
        return 4, per / 8
    amp_alone = re.search(r"amp", words) and "weights" not in words
    return None, 4.0 if kind in {"fp32", "tf32"} or amp_alone else 2.0


def _moments(row: Row) -> tuple[str, float]:
    words = row.text("optimizer")
    for pattern, name, size in _MOMENTS:
        if re.search(pattern, words):
            return name, size
    return "adam", 8.0
