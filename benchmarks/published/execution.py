"""Execution of a step: batches, recomputation, attention, offload."""

import re
from dataclasses import dataclass
from typing import Literal

from benchmarks.published.cells import Row, UnusableRowError
from benchmarks.published.devices import OLD
from benchmarks.published.families import FAMILIES
from benchmarks.published.layouts import Degrees
from benchmarks.published.values import Engine, Generation, Loss

Mode = Literal["none", "full", "selective"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Samples of a step: micro_batch x accumulation x data ranks."""

    micro: int
    accumulation: int
    whole: int
    stated: bool


def batch_of(row: Row, degrees: Degrees, engine: Engine) -> Batch:
    """The batch of a row; what is missing follows from the rest.

    Without a micro-batch and without an accumulation, a pipeline takes micro-batches of one sample
    and ranks without a pipeline take theirs at once. A local batch that FSDP's pipeline takes
    in one accumulation is cut into as many micro-batches as there are stages.

    Source: torchtitan's `pipeline_parallel_microbatches`, whose default was the degree.

    Raises:
        UnusableRowError: If no batch is stated at all.
    """
    micro, steps = row.count("micro_batch"), row.count("grad_accum")
    whole = row.count("global_batch")
    stated = micro is not None or (whole is not None and steps is not None)
    if micro is None and whole is None:
        raise UnusableRowError("no batch size")
    if micro is None:
        each = max(1, (whole or 1) // degrees.data)
        micro = max(1, each // steps) if steps else 1 if degrees.pipeline > 1 else each
    if steps is None:
        steps = max(1, round(whole / (micro * degrees.data))) if whole else 1
    if engine == "fsdp" and degrees.pipeline > 1 and steps == 1 and micro >= degrees.pipeline:
        micro, steps = micro // degrees.pipeline, degrees.pipeline
    return Batch(
        micro=micro,
        accumulation=steps,
        whole=micro * steps * degrees.data,
        stated=stated,
    )


def checkpoint_of(row: Row) -> tuple[float, Mode, bool]:
    """Share recomputed, mode, and whether the table says so; an empty cell is none.

    A cell that ends in a question mark is a guess of the table's.

    A share of blocks that is only called selective follows from hardware and model FLOPs, which
    differ by a third of the share (Korthikanti et al. 2022, arXiv:2205.05198, appendix A). Layers
    of which some are chosen are every second one, torchtitan's default.
    """
    words = row.text("ckpt")
    ratio, mode = _recomputed(row, words)
    return ratio, mode, bool(words) and not words.endswith("?")


def _recomputed(row: Row, words: str) -> tuple[float, Mode]:
    ratio = re.search(r"(\d*\.\d+|\d+(?= ?%))", words)
    if ratio:
        share = float(ratio.group(1))
        return min(1.0, share / 100 if "%" in words else share), "full"
    if not words or words.startswith(("none", "no", "false", "moe")):
        return 0.0, "none"
    if words.startswith("select"):
        if "layer" in words:
            return 0.5, "full"
        blocks = _share_by_flops(row) if row.notes_have(r"fraction of (the )?blocks") else None
        return (1.0, "selective") if blocks is None else (blocks, "full")
    return 1.0, "full"


def _share_by_flops(row: Row) -> float | None:
    model = row.number("mfu_pct")
    hardware = re.search(r"hfu ([\d.]+)", row.text("mfu_or_hfu"))
    if not model or hardware is None:
        return None
    return min(1.0, max(0.0, 3 * (float(hardware.group(1)) / model - 1)))


def attention_of(
    row: Row, generation: Generation, family: str
) -> tuple[Literal["eager", "flash"], bool]:
    """Returns eager (scores written out) or flash (one kernel), and whether that is stated.

    An empty cell is flash from Hopper on, and on other devices that have it for families whose code
    uses it (see `families`); eager otherwise, as Megatron's and GPT-2's code was before 2023.
    """
    words = row.text("attn_impl")
    if re.search(r"unfused|eager|no flash|naive|deepspeed fused", words):
        return "eager", True
    if words and words != "none":
        return "flash", True
    if generation in OLD:
        return "eager", False
    modern = FAMILIES[family].modern
    return "flash" if generation in {"hopper", "blackwell"} or modern else "eager", False


def fuses_kernels(row: Row) -> bool:
    """Returns whether operators other than attention are said to be fused."""
    return "deepspeed fused" in row.text("attn_impl") or row.notes_have(
        r"\bliger|foak|fast[- ]kernels|apex fused|fused loss"
    )


def loss_of(row: Row) -> Loss:
    """Returns the way in which cross-entropy is computed.

    Source: Liger-Kernel's `fused_linear_cross_entropy` (in chunks, without whole logits); Unsloth's
    `fast_cross_entropy_loss`, which foak's kernels contain (gradients replace logits); MosaicML's
    `fused_crossentropy`, the default of its MPT (flash-attn's, which has no fp32 logits).
    """
    if row.notes_have(r"\bliger|-liger|fused loss|linear cross|chunked (ce|loss)|tiled"):
        return "linear"
    fused = row.notes_have(r"foak|fast[- ]kernels|unsloth")
    mpt = re.match(r"mpt|mosaicgpt", row.text("model")) is not None
    return "in_place" if fused or mpt else "plain"


@dataclass(frozen=True, slots=True, kw_only=True)
class Offload:
    """Tensors moved to host memory or NVMe; `dynamic` if only as much as is needed."""

    optimizer: bool
    parameters: bool
    activations: bool
    nvme: bool
    dynamic: bool


def offload_of(row: Row) -> Offload:
    """Returns what a row offloads; weights never without the optimizer's states."""
    words = row.text("offload")
    asked = bool(words) and not words.startswith(("none", "no", "false"))
    parameters = asked and re.search(r"param|full|auto", words) is not None
    activations = asked and "activation" in words
    return Offload(
        optimizer=parameters or (asked and (not activations or "optim" in words)),
        parameters=parameters,
        activations=activations,
        nvme=asked and "nvme" in words,
        dynamic=asked and re.search(r"auto|dynamic", words) is not None,
    )
