"""The baseline: a constant share of the device's peak, and textbook memory."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from benchmarks.published.families import matmul_weights
from benchmarks.published.forecaster import RunForecasts
from benchmarks.published.values import Run
from search_spaces.hardware.catalogue import known_device
from search_spaces.hardware.names import DeviceError

GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstantMfu:
    """Throughput is a constant share of the peak over the model's FLOPs; memory by formula.

    FLOPs of a sample: 6 per weight and token, and attention's 12 x layers x width x length for each
    token. Memory is states and activations; a run fits where they are below the device's memory.
    Records set a factor on each, the median of measured over forecast.

    Source: Narayanan et al. 2021, arXiv:2104.04473, appendix; Rajbhandari et al. 2020,
        arXiv:1910.02054, section 3; Korthikanti et al. 2022, arXiv:2205.05198, sections 4 and 5.
    """

    mfu: float = 0.40
    speed_factor: float = 1.0
    memory_factor: float = 1.0

    def forecast(self, runs: Sequence[Run]) -> RunForecasts:
        speed = np.array([self.speed_factor * self._samples(run) for run in runs], float)
        memory = np.array([self.memory_factor * memory_bytes(run) for run in runs], float)
        room = np.array([(run.device_memory_gib or np.nan) * GIB for run in runs], float)
        fits = np.where(np.isfinite(room), memory < room, np.nan).astype(float)
        return RunForecasts(
            samples_per_second=speed, memory_bytes=memory, p_fits=fits, peak_share=memory / room
        )

    def calibrated(self, records: Sequence[Run]) -> Self:
        told = self.forecast(records)
        speed = [run.samples_per_second if run.throughput_usable else None for run in records]
        memory = [run.peak_memory_bytes if run.memory_usable else None for run in records]
        return replace(
            self,
            speed_factor=self.speed_factor * _factor(speed, told.samples_per_second),
            memory_factor=self.memory_factor * _factor(memory, told.memory_bytes),
        )

    def _samples(self, run: Run) -> float:
        peak = peak_flops(run)
        return self.mfu * peak * run.gpus / sample_flops(run) if peak else float("nan")


def peak_flops(run: Run) -> float | None:
    """Dense FLOP/s of one device in the run's number format; None if nobody knows the device."""
    kind = run.states.kind
    try:
        device = known_device(run.device)
    except DeviceError:
        return None
    stated = device.peak_flops_per_second("fp8" if kind == "nvfp4" else kind)
    return stated or device.fp16_flops_per_second or None


def sample_flops(run: Run) -> float:
    """FLOPs of one sample, without recomputation."""
    shape = run.shape
    attention = 12 * shape.layers * shape.heads * shape.head_size * shape.seq_len
    return float(shape.seq_len) * (6 * matmul_weights(shape) + attention)


def memory_bytes(run: Run) -> float:
    """States of a device's share of the weights, and activations of the first stage."""
    layout, states, shape = run.layout, run.states, run.shape
    embedding = 0 if shape.tied else shape.vocab * shape.hidden
    count = matmul_weights(shape, of_all_experts=True) + embedding
    share = count / (layout.tensor * layout.pipeline)
    if run.method == "lora":
        held = states.frozen_bytes * share / (layout.shards if layout.zero_stage == 3 else 1)
    else:
        split = [layout.shards if layout.zero_stage >= stage else 1 for stage in (1, 2, 3)]
        state = 0.0 if layout.offload_optimizer else states.state_bytes
        weights = 0.0 if layout.offload_parameters else states.weight_bytes
        held = share * (state / split[0] + states.gradient_bytes / split[1] + weights / split[2])
    return held + _activations(run)


def _activations(run: Run) -> float:
    """34 s b h + 5 a s^2 b of a layer, over the tensor ranks; 2 s b h of a recomputed one."""
    layout, shape = run.layout, run.shape
    tokens = layout.micro_batch * shape.seq_len
    scores = 5 * shape.heads * shape.seq_len * tokens if layout.attention == "eager" else 0
    if layout.checkpoint_mode == "selective":
        scores = 0
    thin = tokens * shape.hidden
    split = 34 / layout.tensor if layout.sequence_parallel else 10 + 24 / layout.tensor
    whole = thin * split + scores / layout.tensor
    ratio = layout.checkpoint_ratio if layout.checkpoint_mode == "full" else 0.0
    layers = shape.layers  # a stage holds layers / pipeline of as many micro-batches as stages
    logits = (
        4 * tokens * shape.vocab / layout.tensor if shape.task != "sequence-classification" else 0
    )
    kept = layers * ((1 - ratio) * whole + ratio * 2 * thin)
    return float(kept + (whole if ratio else 0.0) + logits)


def _factor(measured: Sequence[float | None], told: Sequence[float] | object) -> float:
    values = np.asarray(told, float)
    truth = np.array([np.nan if value is None else value for value in measured], float)
    ratios = truth / values
    known = ratios[np.isfinite(ratios) & (ratios > 0)]
    return float(np.median(known)) if len(known) else 1.0
