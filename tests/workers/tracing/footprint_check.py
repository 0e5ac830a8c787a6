"""Check of a footprint against torch's own trackers, on the whole model."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from search_spaces.costs.footprint import Compute, Part, Pass, Variant
from search_spaces.costs.plan_encoding import VariantKey
from search_spaces.plan import Attention, Precision
from search_spaces.specification.schema import SweepSpec
from workers.models.built import seeded
from workers.models.fake_memory import FakeMemory
from workers.plain_torch.data_parallel import shard
from workers.plain_torch.loss import loss_of
from workers.tracing.footprints import traced_attention
from workers.tracing.operators import tensors
from workers.tracing.recorder import run_operator
from workers.tracing.step import emulated_device
from workers.tracing.trace import trace
from workers.tracing.traced_model import fake_ranks, in_fake_memory, traced_model
from workers.tracing.variants import batch_of, longest_spec, pass_plan

_EMPTY = torch.ops.aten.empty.memory_format  # of gathered weights, before the tracker knows them
_FORWARD_PRODUCTS, _BACKWARD_PRODUCTS = 2, 5  # in an attention kernel
_ACTIVATIONS = ("ACT", "TEMP", "INP")  # kinds of memory in torch's tracker


@dataclass(frozen=True, slots=True, kw_only=True)
class FootprintCheck:
    """Costs of one step by a footprint and by torch's trackers.

    Bytes are those of activations and temporaries, at the end of forward and at the peak.
    """

    saved_bytes: float
    tracked_saved_bytes: float
    peak_bytes: float
    tracked_peak_bytes: float
    flops: float
    tracked_flops: float


def check(
    spec: SweepSpec,
    *,
    attention: Attention = "sdpa",
    compute: Compute = "cast",
    device: str = "cuda",
    micro_batch: int = 3,
    ranks: int = 8,
    cache: Path | None = None,
) -> FootprintCheck:
    """Traces the whole model at its full depth, and compares it with its footprint.

    The worker's own FSDP2 shards the model over fake ranks. Autocast is checked in the same
    way, since torch's tracker of whole models does not support frozen weights.

    Args:
        spec: As for `workers.tracing.trace.trace`.
        attention: Of the model.
        compute: Compute mode of the blocks.
        device: "cuda" or "cpu", whose kernels are emulated.
        micro_batch: Samples.
        ranks: Number of shards.
        cache: The folder of cached footprints.

    Raises:
        ModelError: As `workers.tracing.trace.trace`.
    """
    footprint = trace(spec, [VariantKey(attention, compute, "none")], device=device, cache=cache)
    variant = footprint.variant(attention, compute, "none")
    tracked_saved_bytes, tracked_peak_bytes, tracked_flops = _track(
        spec, traced_attention(attention), compute, device, micro_batch, ranks
    )
    return FootprintCheck(
        saved_bytes=saved_bytes(variant, micro_batch),
        tracked_saved_bytes=tracked_saved_bytes,
        peak_bytes=peak_bytes(variant, micro_batch),
        tracked_peak_bytes=tracked_peak_bytes,
        flops=flops(variant, micro_batch),
        tracked_flops=tracked_flops,
    )


def _track(
    spec: SweepSpec,
    attention: Attention,
    compute: Compute,
    device: str,
    micro_batch: int,
    ranks: int,
) -> tuple[float, float, float]:
    """Returns bytes at the end of forward and at the peak, and FLOPs, as torch counts them."""
    mode = FakeMemory()
    whole = traced_model(spec, attention, mode, whole=True)
    # sharding casts, not the copy; beside adapters, autocast leaves frozen weights in bf16
    key = VariantKey(attention, "fp32" if compute == "cast" else compute, "none")
    model = in_fake_memory(whole.model, key, mode, None)
    batch = batch_of(model, longest_spec(model, spec), pass_plan(micro_batch))
    precision: Precision = "bf16" if compute == "cast" else "fp32"
    plan = replace(pass_plan(1), data=ranks, zero_stage=3, precision=precision)
    with fake_ranks(plan) as mesh, mode, seeded(spec.train.seed):
        shard(
            model.module,
            model.blocks,
            mesh.devices["shard"],
            compute=plan.precision,
            reshard_after_forward=plan.zero_stage == 3,
            offload=False,
            pin_memory=False,
        )
        tracker = FSDPMemTracker(model.module)
        tracker.track_inputs(tuple(batch.inputs.values()))
        peak = _ActivationPeak(tracker)
        counter = FlopCounterMode(
            display=False, custom_mapping={torch.ops.aten._grouped_mm: _grouped_flops}
        )
        with BatchValues(), tracker, peak, counter, emulated_device(device):
            with torch.autocast("cpu", torch.bfloat16, enabled=compute == "autocast"):
                loss = loss_of(model.module(**batch.inputs))
            saved_bytes = _activations(tracker)
            loss.backward()
    return saved_bytes, max(saved_bytes, peak.size_bytes), float(counter.get_total_flops())


def _grouped_flops(left: torch.Size, right: torch.Size, *_: object, **__: object) -> int:
    """Returns the FLOPs of a grouped product; a routed token counts once."""
    groups = 1 if 2 in (len(left), len(right)) else left[0]
    return 2 * groups * left[-2] * right[-1] * left[-1]


class _ActivationPeak(TorchDispatchMode):
    """Tracks the peak of activations, which may come at another time than that of all memory."""

    def __init__(self, tracker: FSDPMemTracker) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.size_bytes = 0
        self._tracker = tracker

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.namespace == "aten" and not func.is_view and func is not _EMPTY:
            self.size_bytes = max(self.size_bytes, _activations(self._tracker))
        return result


def _activations(tracker: FSDPMemTracker) -> int:
    return sum(
        size_bytes
        for by_kind in tracker.get_tracker_snapshot("current").values()
        for kind, size_bytes in by_kind.items()
        if str(kind).rpartition(".")[2] in _ACTIVATIONS
    )


def saved_bytes(variant: Variant, micro_batch: int, tensor: int = 1) -> float:
    """Returns the bytes in memory at the end of forward, without weights."""
    return sum(float(part.saved_bytes.at(micro_batch, tensor)) for part in _in_order(variant))


def peak_bytes(variant: Variant, micro_batch: int, tensor: int = 1) -> float:
    """Returns the peak of bytes in forward and backward, without weights and their gradients."""
    level, peak = 0.0, 0.0
    for part in _in_order(variant):
        level += float(part.saved_bytes.at(micro_batch, tensor))
        for direction in (part.forward, part.backward):
            peak = max(peak, level + float(direction.transient_bytes.at(micro_batch, tensor)))
    return peak


def flops(variant: Variant, micro_batch: int, tensor: int = 1) -> float:
    """Returns the FLOPs of matrix products and attention kernels, without recomputation.

    All pairs of tokens count, including those that a causal mask blocks, as in torch's counter.
    """
    return sum(
        _flops(part.forward, _FORWARD_PRODUCTS, micro_batch, tensor)
        + _flops(part.backward, _BACKWARD_PRODUCTS, micro_batch, tensor)
        for part in _in_order(variant)
    )


def _in_order(variant: Variant) -> Iterator[Part]:
    yield variant.embedding
    blocks = {index: kind.part for kind in variant.blocks for index in kind.indices}
    for index in sorted(blocks):
        yield blocks[index]
    yield variant.head


def _flops(work: Pass, products: int, micro_batch: int, tensor: int) -> float:
    total = 0.0
    for matmul in work.matmuls:
        sizes = (matmul.batch, matmul.rows, matmul.columns, matmul.inner)
        matmul_flops = 2.0 * matmul.count
        for size in sizes:
            matmul_flops *= size.at(micro_batch, tensor)
        total += matmul_flops
    for kernel in work.attentions:
        kernel_flops = 2.0 * products * kernel.head_size * kernel.count
        for size in (kernel.heads, kernel.queries, kernel.keys):
            kernel_flops *= size.at(micro_batch, tensor)
        total += kernel_flops
    return total


class BatchValues(TorchDispatchMode):
    """Computes real values inside a fake mode for operators that read only real tensors.

    Models read masks to choose a kernel.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        return run_operator(func, args, kwargs or {}, tuple(tensors(args, kwargs)))
