"""Time of a micro-batch in each part of a model, including collectives of tensor ranks."""

from __future__ import annotations

import numpy as np

from search_spaces.costs.coefficients import TimeCoefficients
from search_spaces.costs.columns import PASSES
from search_spaces.costs.plan_features import Counts, Flags, Numbers
from search_spaces.costs.workload import Workload

COMPUTING = ("matmul", "attention", "operators", "launches", "tensor_collectives")
PIECES = ("embedding", "block", "full", "selective", "head")
TILE = 128.0  # rows and columns of the tile that one multiprocessor computes at a time


def piece_seconds(work: Workload, coefficients: TimeCoefficients) -> Numbers:
    """Forecasts the seconds of a micro-batch, of shape (cases, PIECES, COMPUTING)."""
    cases, sums = work.cases, work.sums
    matmul, attention = _kernel_seconds(work, coefficients)
    compiled, fused = cases.compiled, cases.fused
    traffic = np.where(fused > 0, coefficients.fused_traffic, 1.0)
    traffic = np.where(compiled > 0, coefficients.compiled_traffic, traffic)
    eight_bit = cases.peak_flops > cases.attention_flops
    traffic = traffic * np.where(eight_bit, coefficients.eight_bit_traffic, 1.0)
    device_share = reached_share(coefficients.traffic_share, cases.measured)
    share = np.where(cases.on_cpu > 0, coefficients.host_operators, device_share)
    rate = share * cases.bandwidth / traffic
    operators = sums.traffic_bytes / rate[:, None]
    launching = sums.launches * _launch_seconds(work, coefficients)
    busy = matmul + attention + operators
    # a GPU waits only if it works faster than the host launches; a CPU launches and works in turn
    waiting = np.maximum(launching - busy, coefficients.gap * launching)
    launches = np.where(cases.on_cpu[:, None] > 0, launching, waiting)
    collective = np.where(cases.tensor > 1, 2 * (cases.tensor - 1) / np.maximum(cases.tensor, 1), 0)
    slow_link = np.where(cases.slow_link > 0, coefficients.slow_exchange, 1.0)
    link = reached_share(coefficients.exchange_share * slow_link, cases.measured)
    wire = sums.exchanged_bytes * (collective / (link * cases.tensor_link))[:, None]
    latency = np.maximum(
        coefficients.exchange_seconds * cases.tensor_latency, cases.collective_seconds
    )
    latencies = sums.exchanges * np.where(cases.tensor > 1, latency, 0.0)[:, None]
    host_factor = np.where(cases.on_cpu > 0, coefficients.host_talk, 1.0)
    collectives = (wire + latencies) * host_factor[:, None]
    by_pass = np.stack([matmul, attention, operators, launches, collectives], axis=2)
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


def _launch_seconds(work: Workload, coefficients: TimeCoefficients) -> Numbers:
    """Returns the host's seconds per operator, of shape (cases, PASSES).

    They are those of a block where they were measured, or else by the device's launch time.
    """
    cases = work.cases
    eager, recomputed, compiled = cases.block_launch_seconds.T
    launch = np.where(cases.on_cpu > 0, coefficients.host_launch, coefficients.launch)
    eager = np.where(np.isnan(eager), launch * cases.launch_seconds, eager)
    recomputed = np.where(np.isnan(recomputed), eager, recomputed)
    compiled = np.where(np.isnan(compiled), coefficients.compiled_launch * eager, compiled)
    is_recomputed = np.array([name == "block_recomputed" for name in PASSES])
    by_pass = np.where(is_recomputed, recomputed[:, None], eager[:, None])
    seconds: Numbers = np.where(cases.compiled[:, None] > 0, compiled[:, None], by_pass)
    return seconds


def reached_share(share: Numbers | float, measured: Numbers) -> Numbers:
    """Returns the share of a rate that programs reach: all of it if the rate was measured."""
    shares: Numbers = np.where(measured > 0, 1.0, share)
    return shares


def _kernel_seconds(work: Workload, coefficients: TimeCoefficients) -> tuple[Numbers, Numbers]:
    """Forecasts the seconds of matmuls and of fused attention, of shape (cases, PASSES)."""
    kernels, cases = work.kernels, work.cases
    case, which = np.divmod(kernels.slot, len(PASSES))
    at_ends = np.isin(which, [n for n, name in enumerate(PASSES) if "block" not in name])
    # embedding and head are not computed in 8 bits
    peak = np.where(at_ends, cases.attention_flops[case], cases.peak_flops[case])
    bandwidth = cases.bandwidth[case]
    powered = cases.watts_per_teraflops / (cases.watts_per_teraflops + coefficients.power_half)
    offsets = np.asarray(coefficients.architectures)[cases.architecture] * powered
    limit = reached_share(coefficients.matmul_share * offsets, cases.measured)[case]
    offsets = reached_share(offsets, cases.measured)[case]
    tiles = (
        np.maximum(kernels.batch, 1.0)
        * np.ceil(kernels.rows / TILE)
        * np.ceil(kernels.columns / TILE)
    )
    waves = tiles / cases.multiprocessors[case]
    filled = waves / (waves + coefficients.wave_half)
    deep = kernels.inner / (kernels.inner + coefficients.inner_half)
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
    matmul = matmul / _aligned(work, coefficients, case)
    fast = bandwidth * reached_share(coefficients.traffic_share, cases.measured)[case]
    matmul = np.maximum(matmul, moved / fast)
    is_backward = np.isin(which, [PASSES.index(n) for n in PASSES if n.endswith("backward")])
    backward_share = np.where(is_backward, coefficients.attention_backward, 1.0)
    share = coefficients.attention_share * backward_share
    long = kernels.columns / (kernels.columns + coefficients.sequence_half)
    attention = kernels.flops / (cases.attention_flops[case] * offsets * share * long)
    size = len(cases.tensor) * len(PASSES)

    def spread(seconds: Numbers, chosen: Flags) -> Numbers:
        sums = np.bincount(kernels.slot, np.where(chosen, seconds, 0.0), minlength=size)
        return sums.astype(np.float64).reshape(-1, len(PASSES))

    return spread(matmul, kernels.is_attention == 0), spread(attention, kernels.is_attention == 1)


def _aligned(work: Workload, coefficients: TimeCoefficients, case: Counts) -> Numbers:
    """Returns the share of a matmul's rate that its sizes allow: 16-bit units need multiples.

    Source:
        NVIDIA, "Matrix Multiplication Background User's Guide", sections 2.2 and 3.
    """
    kernels = work.kernels
    widths = (kernels.columns, kernels.inner)
    odd = np.any([np.mod(np.round(width), 8) != 0 for width in widths], axis=0)
    uneven = np.any([np.mod(np.round(width), 64) != 0 for width in widths], axis=0)
    share = np.where(odd, coefficients.odd, np.where(uneven, coefficients.uneven, 1.0))
    return np.where(work.cases.sixteen_bits[case] > 0, share, 1.0)
