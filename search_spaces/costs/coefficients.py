"""Coefficients of the time forecast, which no data sheet or trace contains.

All are positive; they are fitted as logarithms.
"""

from dataclasses import dataclass

from search_spaces.costs.columns import ARCHITECTURES
from search_spaces.costs.plan_features import STACKS


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeCoefficients:
    """Shares of peak rates that programs reach, and additional times.

    A `share` is the limit for large, well-shaped work. A `half` is the size at which half of that
    limit is reached.
    """

    matmul_share: float = 0.9  # of the peak, by large matmuls without a power limit
    power_half: float = 0.2  # watts per TFLOP/s
    wave_half: float = 0.3  # waves of tiles
    inner_half: float = 80.0  # elements summed
    uneven: float = 0.95  # factor for sizes that are not multiples of 64 elements
    odd: float = 0.5  # factor for sizes that are not multiples of 8 elements
    eight_bit_traffic: float = 1.5  # factor for the traffic of operators around 8-bit matmuls
    attention_share: float = 0.55  # of the peak, by fused attention in forward
    attention_backward: float = 0.8  # factor for that in backward (Dao 2023, arXiv:2307.08691)
    cudnn_attention: float = 2.0  # factor for both with cuDNN's, torch's choice since Hopper
    sequence_half: float = 300.0  # keys
    traffic_share: float = 0.75  # of the bandwidth, by operators other than matmuls
    compiled_traffic: float = 0.5  # share of that traffic that remains in compiled blocks
    fused_traffic: float = 0.55  # share of it that remains with hand-fused operators
    launch: float = 1.0  # factor for the device's launch time
    gap: float = 0.1  # share of a launch that each operator waits even if the host is ahead
    compiled_launch: float = 0.4  # factor for launches in compiled blocks
    recomputed_launch: float = 4.0  # factor for launches that selective recomputation repeats
    host_talk: float = 4.0  # factor for collectives on CPU, whose cores compute too
    host_offload: float = 8.0  # factor for offload on CPU
    host_launch: float = 8.0  # factor for launches on CPU, whose cores also run Python
    host_block: float = 2.5  # the same for launches of a measured block, whose data stay in caches
    host_operators: float = 0.3  # of the bandwidth on CPU, where most operators are compute-bound
    recompute_seconds: float = 3e-4  # per recomputed block: saves and restores random states
    exchange_share: float = 0.7  # of the link between tensor ranks
    exchange_seconds: float = 1.5e-5  # per collective of tensor ranks, times log2 of their number
    slow_exchange: float = 0.4  # factor for that share over PCIe
    gather_share: float = 0.7  # of the link between data ranks of a node
    slow_gather: float = 0.5  # factor for that share over PCIe
    network_share: float = 0.6  # of the network
    collective_seconds: float = 3e-5  # per collective of data ranks
    hook_seconds: float = 5e-4  # per pass and block whose gradients DeepSpeed shards
    exposed: float = 0.25  # share of communication that remains although it could overlap
    bubble: float = 0.9  # factor for the fill and drain of a pipeline
    hop_share: float = 0.4  # of the link or network, between pipeline stages
    update_share: float = 0.6  # of the bandwidth, by the optimizer
    pcie_share: float = 0.7
    host_update_share: float = 0.4  # of the host's bandwidth, by the optimizer on the host
    step_seconds: float = 0.003  # per step
    pass_seconds: float = 0.002  # per micro-batch
    rank_seconds: float = 0.01  # per step and doubling of ranks
    node_jitter: float = 0.01  # share of a step, per doubling of nodes
    architectures: tuple[float, ...] = (1.0,) * len(ARCHITECTURES)  # factors for matmul_share
    stacks: tuple[float, ...] = (1.0,) * len(STACKS)  # factors for a step's seconds
