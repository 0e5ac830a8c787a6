"""Time of a micro-batch in each part of a model, including collectives of tensor ranks."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from search_spaces.costs.coefficients import TimeCoefficients
from search_spaces.costs.columns import PASSES
from search_spaces.costs.plan_features import Counts, Flags, Numbers
from search_spaces.costs.workload import Workload

COMPUTING = ("matmul", "attention", "operators", "launches", "tensor_collectives")
LAUNCH_SCALES = ("eager_launches", "recomputed_launches", "compiled_launches")
COMPUTING_SCALES = (
    *("matmul", "attention", "eager_operators", "compiled_operators"),
    *LAUNCH_SCALES,
    "tensor_collectives",
)
"""Scales that measurements correct: eager and compiled work, and launches under selective
recomputation, have one each."""
PIECES = ("embedding", "block", "full", "selective", "head")
_IN_BLOCKS = np.array(["block" in name for name in PASSES])
_IN_HEAD = np.array(["head" in name for name in PASSES])
_RECOMPUTED = np.array([name == "block_recomputed" for name in PASSES])
_REPEATED = [PIECES.index("full"), PIECES.index("selective")]
TILE = 128.0  # rows and columns of the tile that one multiprocessor computes at a time


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PieceSeconds:
    """Seconds of a micro-batch in each piece of a model.

    Attributes:
        terms: Of shape (cases, PIECES, COMPUTING).
        slopes: Derivatives by the logarithms of scales, of shape (cases, PIECES, COMPUTING_SCALES);
            they add up to the same seconds. Work that hides behind the host's launches has none.
    """

    terms: Numbers
    slopes: Numbers


def piece_seconds(work: Workload, coefficients: TimeCoefficients, factors: Numbers) -> PieceSeconds:
    """Forecasts the seconds of a micro-batch.

    Args:
        work: The plans.
        coefficients: Shares of peaks that are reached.
        factors: Scale of each of `COMPUTING_SCALES`.
    """
    factor = dict(zip(COMPUTING_SCALES, factors, strict=True))
    cases, sums = work.cases, work.sums
    heads = _IN_HEAD & (cases.head_compiled[:, None] > 0)
    compiled = _IN_BLOCKS | heads | (cases.whole_compiled[:, None] > 0)
    compiled &= cases.compiled[:, None] > 0
    matmul, attention = _kernel_seconds(work, coefficients)
    matmul, attention = matmul * factor["matmul"], attention * factor["attention"]
    operators = sums.traffic_bytes / _operator_rate(work, coefficients, compiled)
    operators = operators * np.where(
        compiled, factor["compiled_operators"], factor["eager_operators"]
    )
    launch, kind = _launches(work, coefficients, compiled)
    launching = sums.launches * launch * np.array([factor[name] for name in LAUNCH_SCALES])[kind]
    busy = matmul + attention + operators
    # a GPU waits only if it works faster than the host launches; a CPU launches and works in turn
    on_cpu = cases.on_cpu[:, None] > 0
    gaps = coefficients.gap * launching
    hidden = ~on_cpu & (launching - busy > gaps)  # the device's work, behind the launches
    launches = np.where(on_cpu, launching, np.where(hidden, launching - busy, gaps))
    collectives = _collective_seconds(work, coefficients) * factor["tensor_collectives"]
    waited = np.where(hidden, launching, launches)
    seen = {"matmul": matmul, "attention": attention}
    seen |= {"eager_operators": np.where(compiled, 0.0, operators)}
    seen |= {"compiled_operators": np.where(compiled, operators, 0.0)}
    slopes = {name: np.where(hidden, 0.0, seconds) for name, seconds in seen.items()}
    slopes |= {name: np.where(kind == at, waited, 0.0) for at, name in enumerate(LAUNCH_SCALES)}
    slopes |= {"tensor_collectives": collectives}
    terms = _by_piece([matmul, attention, operators, launches, collectives])
    slopes_by_piece = _by_piece([slopes[name] for name in COMPUTING_SCALES])
    states = coefficients.recompute_seconds * factor["recomputed_launches"]
    states = np.where(cases.compiled > 0, 0.0, states)[:, None]
    terms[:, _REPEATED, COMPUTING.index("launches")] += states
    slopes_by_piece[:, _REPEATED, COMPUTING_SCALES.index("recomputed_launches")] += states
    return PieceSeconds(terms=terms, slopes=slopes_by_piece)


def _by_piece(of_passes: Sequence[Numbers]) -> Numbers:
    """Returns seconds by piece, of shape (cases, PIECES, terms), from each term's by pass."""
    stacked = np.stack(of_passes, axis=2)
    at = {name: stacked[:, index] for index, name in enumerate(PASSES)}
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


def _operator_rate(work: Workload, coefficients: TimeCoefficients, compiled: Flags) -> Numbers:
    """Returns bytes of traced traffic per second of operators, of shape (cases, PASSES)."""
    cases = work.cases
    traffic = np.where(cases.fused > 0, coefficients.fused_traffic, 1.0)[:, None]
    traffic = np.where(compiled, coefficients.compiled_traffic, traffic)
    eight_bit = cases.peak_flops > cases.attention_flops
    traffic = traffic * np.where(eight_bit, coefficients.eight_bit_traffic, 1.0)[:, None]
    share = np.where(cases.on_cpu > 0, coefficients.host_operators, coefficients.traffic_share)
    return (share * cases.bandwidth)[:, None] / traffic


def _launches(
    work: Workload, coefficients: TimeCoefficients, compiled: Flags
) -> tuple[Numbers, Counts]:
    """Returns seconds of a launch and its index in `LAUNCH_SCALES`, of shape (cases, PASSES)."""
    cases, measured = work.cases, work.cases.block_launch_seconds
    eager = measured[:, 0] * coefficients.host_block
    host = np.where(np.isnan(eager), coefficients.host_launch * cases.launch_seconds, eager)
    on_cpu = cases.on_cpu[:, None] > 0
    launch = np.where(on_cpu, host[:, None], coefficients.launch * cases.launch_seconds[:, None])
    dispatched = _RECOMPUTED & ~compiled & (cases.fused[:, None] == 0)
    kind = np.where(compiled, 2, np.where(dispatched, 1, 0))
    factors = np.array([1.0, coefficients.recomputed_launch, coefficients.compiled_launch])
    measured = np.where(on_cpu, np.nan, measured)[np.arange(len(kind))[:, None], kind]
    by_kind = launch * factors[kind]
    return np.where(np.isnan(measured), by_kind, measured), kind


def _collective_seconds(work: Workload, coefficients: TimeCoefficients) -> Numbers:
    """Forecasts the seconds of tensor ranks' collectives, of shape (cases, PASSES)."""
    cases, sums = work.cases, work.sums
    collective = np.where(cases.tensor > 1, 2 * (cases.tensor - 1) / np.maximum(cases.tensor, 1), 0)
    slow_link = np.where(cases.slow_link > 0, coefficients.slow_exchange, 1.0)
    link = reached_share(coefficients.exchange_share * slow_link, cases.measured)
    wire = sums.exchanged_bytes * (collective / (link * cases.tensor_link))[:, None]
    latency = np.maximum(
        coefficients.exchange_seconds * cases.tensor_latency, cases.collective_seconds
    )
    latencies = sums.exchanges * np.where(cases.tensor > 1, latency, 0.0)[:, None]
    host_factor = np.where(cases.on_cpu > 0, coefficients.host_talk, 1.0)
    return (wire + latencies) * host_factor[:, None]


def reached_share(share: Numbers | float, measured: Numbers) -> Numbers:
    """Returns the share of a rate that programs reach: all of it if the rate was measured."""
    return np.where(measured > 0, 1.0, share)


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
    rate = peak * limit * filled * deep * _aligned(work, coefficients, case)
    measured = kernels.measured_flops
    matmul = kernels.flops / np.where(np.isnan(measured), rate, measured)
    fast = bandwidth * reached_share(coefficients.traffic_share, cases.measured)[case]
    matmul = np.maximum(matmul, moved / fast)
    is_backward = np.isin(which, [PASSES.index(n) for n in PASSES if n.endswith("backward")])
    backward_share = np.where(is_backward, coefficients.attention_backward, 1.0)
    faster = np.where(cases.cudnn_attention > 0, coefficients.cudnn_attention, 1.0)[case]
    share = coefficients.attention_share * backward_share * faster
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
