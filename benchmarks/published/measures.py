"""Measurements of a row, in samples per second and bytes, and whether they may be compared."""

import re

from benchmarks.published.cells import Row
from benchmarks.published.execution import Offload
from benchmarks.published.families import matmul_weights
from benchmarks.published.methods import Method
from benchmarks.published.values import Layout, MemoryKind, Shape, Stage

GIB = 2**30
TERA = 1e12
_KINDS: tuple[tuple[str, MemoryKind], ...] = (
    (r"nvidia-smi|nvml|whole-gpu", "device"),
    (r"max[_ ](?:memory_)?reserved|peak_reserved|torchtitan", "reserved"),
    (r"max[_ ](?:cuda )?(?:memory[_ ])?allocated|peak_allocated|memory allocated", "allocated"),
)
# Lengths vary and only the longest is known.
_VARIABLE = (
    r"variable[- ]len|packing=false|not packed|longest|truncated at max_length|padding not counted"
    r"|excludes padding"
)


def memory_kind_of(row: Row) -> MemoryKind:
    """Returns what the peak counts: the kind named first after "memory =", else in the notes."""
    notes = row.text("notes")
    told = re.search(r"mem(?:ory)?(?: \"[^\"]*\")? ?=(.*)", notes)
    for text in (told.group(1) if told else "", notes):
        places = [
            (found.start(), kind)
            for pattern, kind in _KINDS
            if (found := re.search(pattern, text)) is not None
        ]
        if places:
            return min(places)[1]
    return "unknown"


def samples_per_second_of(
    row: Row, shape: Shape, layout: Layout, method: Method, gpus: int
) -> float | None:
    """Samples a second of all GPUs: stated, or from tokens, or from FLOPs where that has one sense.

    FLOPs count for full training where the column mfu_or_hfu tells if recomputation is in them:
    6 per weight and token and 12 x layers x heads x head size x length for attention, half of
    that where the column says that it is counted causal; a third more for what is recomputed.

    Source: Narayanan et al. 2021, arXiv:2104.04473, appendix; Korthikanti et al. 2022, appendix A.
    """
    stated = row.number("samples_per_s")
    if stated:
        return stated
    tokens = row.number("tokens_per_s_per_gpu")
    if tokens:
        return tokens * gpus / shape.seq_len
    tflops, words = row.number("tflops_per_gpu"), row.text("mfu_or_hfu")
    hardware = re.search(r"hardware|^hfu", words) is not None
    if not tflops or method.name == "lora" or not (hardware or re.search(r"^mfu|^model", words)):
        return None
    if hardware and (layout.checkpoint_mode == "selective" or not layout.checkpoint_stated):
        return None
    factor = 1 + layout.checkpoint_ratio / 3 if hardware else 1.0
    attention = 12 * shape.layers * shape.heads * shape.head_size * shape.seq_len
    causal = 0.5 if "causal" in words else 1.0
    each = shape.seq_len * factor * (6 * matmul_weights(shape) + causal * attention)
    return tflops * TERA * gpus / each


def oom_of(row: Row) -> bool | None:
    """Returns whether it ran out of memory; None where the table does not say."""
    return {"true": True, "false": False}.get(row.text("oom"))


def varies(row: Row) -> bool:
    """Returns whether samples differ in length and are not packed."""
    return row.notes_have(_VARIABLE)


def is_throughput_usable(row: Row, samples: float | None) -> bool:
    """Returns whether a row's throughput is judged: samples of one length, at known power."""
    limited = re.search(r"power.?limited", row.text("gpu"))
    return samples is not None and not varies(row) and limited is None


def is_memory_usable(layout: Layout, offload: Offload, stages: tuple[Stage, ...]) -> bool:
    """Returns whether a row's peak and its running out of memory are judged.

    They are not where stages recompute operators of their own choice, placement fills what there
    is, activations that are not recomputed go to the host, or recomputation or micro-batch are not
    stated.
    """
    offloads_kept = layout.offload_activations and layout.checkpoint_mode != "full"
    own_choice = any(0 < stage.checkpoint_ratio < 1 for stage in stages)
    stated = layout.checkpoint_stated and layout.batch_stated
    return stated and not own_choice and not offload.dynamic and not offloads_kept
