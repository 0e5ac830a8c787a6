"""What a forecast knows of models and machines, as columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from search_spaces.forecast.executions import Counts, Numbers
from search_spaces.hardware.device import Architecture

ARCHITECTURES: tuple[Architecture, ...] = get_args(Architecture)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CaseColumns:
    """What a case computes on: a row for each case."""

    peak_flops: Numbers
    attention_flops: Numbers  # the peak of attention, which is not computed in 8 bits
    bandwidth: Numbers  # bytes per second
    multiprocessors: Numbers
    launch_seconds: Numbers
    architecture: Counts  # index into ARCHITECTURES
    tensor: Numbers
    tensor_link: Numbers  # bytes per second between tensor ranks
    slow_link: Numbers  # 1 where these are joined by PCIe, else 0
    watts_per_teraflops: Numbers
    tensor_latency: Numbers  # hops between nodes count more
    compiled: Numbers  # 1 or 0
    fused: Numbers
    sixteen_bits: Numbers
    measured: Numbers  # 1 where rates are what programs reached, not what data sheets state
    collective_seconds: Numbers  # of a small collective as it was measured, else 0
    on_cpu: Numbers


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PartBytes:
    """What parts hold in a case, in bytes of one micro-batch: a row for each case."""

    embedding_saved: Numbers
    block_saved: Numbers
    block_copies: (
        Numbers  # what is saved of a block whatever the micro-batch: weights that were cast
    )
    block_kept: Numbers
    block_input: Numbers
    head_saved: Numbers
    block_forward_transient: Numbers
    block_backward_transient: Numbers
    head_forward_transient: Numbers
    head_backward_transient: Numbers


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowColumns:
    """What is known of the model and the machine of each plan."""

    case: Counts
    depth: Numbers
    block_trained: Numbers  # parameters of a rank's slice of a block
    block_frozen: Numbers
    embedding_trained: Numbers
    embedding_frozen: Numbers
    head_trained: Numbers
    head_frozen: Numbers
    tied: Numbers  # parameters that embedding and head share
    largest_weight: Numbers
    tokens: Numbers  # of a sample in the mean
    bandwidth: Numbers
    link: Numbers
    slow_link: Numbers
    network: Numbers
    node_devices: Numbers
    pcie: Numbers
    host_bandwidth: Numbers
    nvme: Numbers
    device_bytes: Numbers
    context_bytes: Numbers
    peak_flops: Numbers
    measured: Numbers  # as in `CaseColumns`
    collective_seconds: Numbers
    on_cpu: Numbers
