"""What cannot be read off a data sheet or a trace: how near software comes to what hardware can.

All are positive; they are fitted in logarithms.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, TypeVar

import numpy as np

from search_spaces.costs.columns import ARCHITECTURES
from search_spaces.costs.plan_features import STACKS, Numbers

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeCoefficients:
    """Shares of peaks that are reached, and times that are added.

    A share of a bandwidth or a peak is at most reached in long, well-shaped work.
    """

    matmul_share: float = 0.9  # of the peak, by large matmuls, had they all the power they want
    power_half: float = 0.2  # watts for each TFLOP/s at which half of that is reached
    wave_half: float = 0.3  # waves of tiles at which half of that is reached
    inner_half: float = 80.0  # elements summed at which half of that is reached
    uneven: float = 0.95  # of it, with sizes that are no multiples of 64 elements
    odd: float = 0.5  # with sizes that are no multiples of 8
    eight_bit_traffic: float = 1.5  # traffic of operators around matmuls in 8 bits
    attention_share: float = 0.55  # of the peak, by fused attention forward
    attention_backward: float = 0.75  # of that, backward
    sequence_half: float = 300.0  # keys at which half of that is reached
    traffic_share: float = 0.75  # of the bandwidth, by operators that are no matmuls
    compiled_traffic: float = 0.5  # of that traffic which is left where blocks are compiled
    fused_traffic: float = 0.55  # or fused by hand
    launch: float = 1.0  # of the device's launch time
    gap: float = 0.1  # of a launch that each operator waits even where the host is ahead
    compiled_launch: float = 0.4
    host_talk: float = 4.0  # of the seconds of collectives that run alone, where cores compute too
    host_offload: float = 8.0  # of offload's seconds, where the host is the device
    host_launch: float = 8.0  # on a CPU, whose cores run the model's Python too
    host_operators: float = 0.3  # of the bandwidth, on a CPU, which computes most of them
    recompute_seconds: float = 3e-4  # of each recomputed block: random states are put away and back
    exchange_share: float = 0.7  # of the link between tensor ranks
    exchange_seconds: float = 1.5e-5  # of each collective between them, times log2 of their number
    slow_exchange: float = 0.4  # of that share, where the link is PCIe
    gather_share: float = 0.7  # of the link between data ranks of a node
    slow_gather: float = 0.5  # of that share, where the link is PCIe
    network_share: float = 0.6  # of the network
    collective_seconds: float = 3e-5  # of each collective of data ranks
    hook_seconds: float = 5e-4  # of each block whose gradients DeepSpeed splits, in each pass
    exposed: float = 0.25  # of what could hide behind computing
    bubble: float = 0.9  # of a pipeline's filling and draining
    hop_share: float = 0.4  # of the link or network, between pipeline stages
    update_share: float = 0.6  # of the bandwidth, by the optimizer
    pcie_share: float = 0.7
    host_update_share: float = 0.4  # of the host's bandwidth, by the optimizer on the host
    step_seconds: float = 0.01  # of each step
    pass_seconds: float = 0.002  # of each micro-batch
    node_jitter: float = 0.01  # of a step, for each doubling of nodes
    architectures: tuple[float, ...] = (1.0,) * len(ARCHITECTURES)  # of matmul_share
    stacks: tuple[float, ...] = (1.0,) * len(STACKS)  # of a step's seconds


def to_vector(coefficients: Any) -> Numbers:
    """Logarithms of a frozen value's coefficients, in the order of its fields."""
    held = [getattr(coefficients, field.name) for field in fields(coefficients)]
    logarithms: Numbers = np.log(np.hstack(held))
    return logarithms


def from_vector(kind: type[T], vector: Numbers) -> T:
    """The value whose coefficients have these logarithms."""
    values = iter(np.exp(vector).tolist())
    given: dict[str, Any] = {}
    for field in fields(kind):  # type: ignore[arg-type]
        if isinstance(field.default, tuple):
            given[field.name] = tuple(next(values) for _ in field.default)
        else:
            given[field.name] = next(values)
    return kind(**given)
