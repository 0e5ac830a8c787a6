"""Seconds of a micro-batch in each part of a model, collectives of tensor ranks included."""

from __future__ import annotations

import numpy as np

from search_spaces.costs.coefficients import TimeCoefficients
from search_spaces.costs.columns import PASSES
from search_spaces.costs.plan_features import Counts, Flags, Numbers
from search_spaces.costs.workload import Work

COMPUTING = ("matmul", "attention", "operators", "launches", "tensor_collectives")
PIECES = ("embedding", "block", "full", "selective", "head")
TILE = 128.0  # rows and columns of a product that one multiprocessor works on at a time


def piece_seconds(work: Work, by: TimeCoefficients) -> Numbers:
    """Seconds of (case, piece, computing term)."""
    cases, sums = work.cases, work.sums
    matmul, attention = _kernel_seconds(work, by)
    compiled, fused = cases.compiled, cases.fused
    left = np.where(compiled > 0, by.compiled_traffic, np.where(fused > 0, by.fused_traffic, 1.0))
    eight = cases.peak_flops > cases.attention_flops
    left = left * np.where(eight, by.eight_bit_traffic, 1.0)
    share = np.where(cases.on_cpu > 0, by.host_operators, reached(by.traffic_share, cases.measured))
    rate = share * cases.bandwidth / left
    operators = sums.traffic_bytes / rate[:, None]
    each = np.where(cases.on_cpu > 0, by.host_launch, by.launch) * cases.launch_seconds
    each = each * np.where(compiled > 0, by.compiled_launch, 1.0)
    launching = sums.launches * each[:, None]
    busy = matmul + attention + operators
    # a device waits where it works faster than the host launches, a CPU launches and works in turn
    waited = np.maximum(launching - busy, by.gap * launching)
    launches = np.where(cases.on_cpu[:, None] > 0, launching, waited)
    collective = np.where(cases.tensor > 1, 2 * (cases.tensor - 1) / np.maximum(cases.tensor, 1), 0)
    link = by.exchange_share * np.where(cases.slow_link > 0, by.slow_exchange, 1.0)
    link = reached(link, cases.measured)
    wire = sums.exchanged_bytes * (collective / (link * cases.tensor_link))[:, None]
    wait = np.maximum(by.exchange_seconds * cases.tensor_latency, cases.collective_seconds)
    waits = sums.exchanges * np.where(cases.tensor > 1, wait, 0.0)[:, None]
    talk = (wire + waits) * np.where(cases.on_cpu > 0, by.host_talk, 1.0)[:, None]
    by_pass = np.stack([matmul, attention, operators, launches, talk], axis=2)
    at = {name: by_pass[:, index] for index, name in enumerate(PASSES)}
    return np.stack(
        [
            at["embedding_forward"] + at["embedding_backward"],
            at["block_forward"] + at["block_backward"],
            at["block_forward"],
            at["block_recomputed"],
            at["head_forward"] + at["head_backward"],
        ],
        axis=1,
    )


def reached(share: Numbers | float, measured: Numbers) -> Numbers:
    """The share of a rate that is reached: all of it where the rate was measured."""
    whole: Numbers = np.where(measured > 0, 1.0, share)
    return whole


def _kernel_seconds(work: Work, by: TimeCoefficients) -> tuple[Numbers, Numbers]:
    """Seconds in matmuls and in fused attention, of (case, pass)."""
    kernels, cases = work.kernels, work.cases
    case, which = np.divmod(kernels.slot, len(PASSES))
    at_ends = np.isin(which, [n for n, name in enumerate(PASSES) if "block" not in name])
    # the ends are not computed in 8 bits
    peak = np.where(at_ends, cases.attention_flops[case], cases.peak_flops[case])
    bandwidth = cases.bandwidth[case]
    powered = cases.watts_per_teraflops / (cases.watts_per_teraflops + by.power_half)
    offsets = np.asarray(by.architectures)[cases.architecture] * powered
    limit = reached(by.matmul_share * offsets, cases.measured)[case]
    offsets = reached(offsets, cases.measured)[case]
    tiles = (
        np.maximum(kernels.batch, 1.0)
        * np.ceil(kernels.rows / TILE)
        * np.ceil(kernels.columns / TILE)
    )
    waves = tiles / cases.multiprocessors[case]
    filled = waves / (waves + by.wave_half)
    deep = kernels.inner / (kernels.inner + by.inner_half)
    moved = (
        kernels.element_bytes
        * kernels.calls
        * kernels.batch
        * (
            kernels.rows * kernels.inner
            + kernels.inner * kernels.columns
            + kernels.rows * kernels.columns
        )
    )
    matmul = kernels.flops / (peak * limit * filled * deep)
    matmul = matmul / _aligned(work, by, case)
    fast = bandwidth * reached(by.traffic_share, cases.measured)[case]
    matmul = np.maximum(matmul, moved / fast)
    is_backward = np.isin(which, [PASSES.index(n) for n in PASSES if n.endswith("backward")])
    share = by.attention_share * np.where(is_backward, by.attention_backward, 1.0)
    long = kernels.columns / (kernels.columns + by.sequence_half)
    attention = kernels.flops / (cases.attention_flops[case] * offsets * share * long)
    size = len(cases.tensor) * len(PASSES)

    def spread(seconds: Numbers, chosen: Flags) -> Numbers:
        sums = np.bincount(kernels.slot, np.where(chosen, seconds, 0.0), minlength=size)
        return sums.astype(np.float64).reshape(-1, len(PASSES))

    return spread(matmul, kernels.is_attention == 0), spread(attention, kernels.is_attention == 1)


def _aligned(work: Work, by: TimeCoefficients, case: Counts) -> Numbers:
    """Share of a matmul's rate that its sizes leave: units for 16 bits want multiples.

    Source:
        NVIDIA, "Matrix Multiplication Background User's Guide", sections 2.2 and 3.
    """
    kernels = work.kernels
    widths = (kernels.columns, kernels.inner)
    odd = np.any([np.mod(np.round(width), 8) != 0 for width in widths], axis=0)
    uneven = np.any([np.mod(np.round(width), 64) != 0 for width in widths], axis=0)
    share = np.where(odd, by.odd, np.where(uneven, by.uneven, 1.0))
    return np.where(work.cases.sixteen_bits[case] > 0, share, 1.0)
