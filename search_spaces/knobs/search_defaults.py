"""The values of each knob that are searched where the specification names none.

A knob is searched by default if it may well decide what fits or what is fastest on the machines
at hand; what is left at rest here can be named in `space`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from search_spaces.facts import ClusterFacts, ModelFacts
from search_spaces.spec.schema import GIB, SweepSpec

Values = tuple[Any, ...]
Chosen = Mapping[str, Any]

CHECKPOINT_RATIOS = (0.0, 0.25, 0.5, 0.75, 1.0)
MOST_TENSOR_RANKS = 8  # beyond a node, tensor parallelism waits for the network
_NODES_OF_A_REPLICA = (1, 2, 4, 8)  # that hybrid shard splits states over, each of so many ranks
_STATE_BYTES = 16  # of a trained parameter: fp32 weight, gradient and two moments of Adam
_LEAST_DEVICE_BYTES = 16 * GIB  # of an accelerator that people train on, where none is known


@dataclass(frozen=True, slots=True, kw_only=True)
class DomainContext:
    """What the values of a knob may depend on; `chosen` holds the knobs that it looks at."""

    spec: SweepSpec
    model: ModelFacts
    cluster: ClusterFacts
    workers: int
    chosen: Chosen

    @property
    def on_cuda(self) -> bool:
        """Whether the ranks are GPUs."""
        return self.cluster.device == "cuda"


def powers_of_two(most: int) -> Values:
    """1, 2, 4 and so on, none above `most`."""
    return tuple(2**power for power in range(most.bit_length()) if 2**power <= most)


def accelerators(choice: DomainContext) -> Values:
    """All kinds of nodes that the specification tells apart."""
    return tuple(one.name for one in choice.cluster.accelerators) or ("",)


def engines(choice: DomainContext) -> Values:
    """DeepSpeed only where it alone can help: one GPU that needs to offload."""
    lacks = choice.cluster.lack("deepspeed") or choice.cluster.lack("cpu_adam")
    alone = choice.on_cuda and choice.workers == 1 and choice.spec.train.method == "full"
    return ("torch", "deepspeed") if alone and not lacks and _is_tight(choice, 1) else ("torch",)


def tensor_degrees(choice: DomainContext) -> Values:
    """More than 1 on the GPUs of a node, if data ranks alone would be short of room or work.

    Source:
        Narayanan et al. 2021, arXiv:2104.04473, takeaways 1 and 2: split a model no further
        than it takes to fit, by tensor within a node, by pipeline beyond it.
    """
    facts, train = choice.model.tensor, choice.spec.train
    wanted = _is_tight(choice, 1) or train.global_batch % choice.workers
    if not choice.on_cuda or not wanted or facts.refusal or train.method == "lora":
        return (1,)
    return tuple(
        degree
        for degree in powers_of_two(min(choice.workers, MOST_TENSOR_RANKS))
        if choice.workers % degree == 0
        if all(count % degree == 0 for _, count in facts.divisors)
    )


def sequence_splits(choice: DomainContext) -> Values:
    """Both ways where the model and the engine can."""
    able = choice.chosen["engine"] == "torch" and not choice.model.tensor.sequence_refusal
    return (False, True) if able else (False,)


def pipeline_degrees(choice: DomainContext) -> Values:
    """More than 1 only beyond a node: see `tensor_degrees`.

    Powers of two, and what cuts the blocks into stages of one size.
    """
    model, train = choice.model, choice.spec.train
    short = _is_tight(choice, 1) or train.global_batch % choice.workers
    wanted = choice.on_cuda and choice.workers > MOST_TENSOR_RANKS and short
    torch = choice.chosen["engine"] == "torch"
    if not wanted or not torch or model.pipeline_refusal or train.method == "lora":
        return (1,)
    left = choice.workers // choice.chosen["tensor"]
    most = min(left, max(model.blocks, 1))
    even = {degree for degree in range(1, most + 1) if model.blocks % degree == 0}
    degrees = sorted(even.union(powers_of_two(most)))
    return tuple(degree for degree in degrees if left % degree == 0)


def pipeline_schedules(choice: DomainContext) -> Values:
    """On GPUs interleaved too: a smaller bubble for more messages."""
    return ("1f1b", "interleaved") if choice.on_cuda else ("1f1b",)


def data_degrees(choice: DomainContext) -> Values:
    """All ranks that are left, on nodes of the plan's kind."""
    chosen, ranks = choice.chosen, choice.workers
    if chosen["accelerator"]:
        here = choice.cluster.of(chosen["accelerator"])
        ranks = min(ranks, choice.spec.cluster.ranks_of(here.slots))
    return (max(ranks // (chosen["tensor"] * chosen["pipeline"]), 1),)


def zero_stages(choice: DomainContext) -> Values:
    """All that the engine has; on one rank only what offload needs."""
    if choice.chosen["engine"] == "torch":
        return (0, 2, 3) if choice.chosen["data"] > 1 else (0,)
    if choice.chosen["data"] > 1:
        return (0, 1, 2, 3)
    named = choice.spec.space
    offloads = choice.on_cuda or named.offload_optimizer or named.offload_parameters
    return (0, 2, 3) if offloads else (0,)


def replica_counts(choice: DomainContext) -> Values:
    """Beyond a node also replicas of one node or of a few, if they have room for the states.

    Source:
        Zhao et al. 2023, arXiv:2304.11277, section 3.2.2: hybrid sharding keeps most traffic
        within nodes.
    """
    chosen = choice.chosen
    if not choice.on_cuda or choice.workers <= MOST_TENSOR_RANKS:
        return (1,)
    spans = [nodes * MOST_TENSOR_RANKS // chosen["tensor"] for nodes in _NODES_OF_A_REPLICA]
    split = chosen["tensor"] * chosen["pipeline"]
    wanted = {
        chosen["data"] // shards
        for shards in spans
        if 1 < shards < chosen["data"] and chosen["data"] % shards == 0
        if _state_bytes(choice) / (split * shards) <= _limit_bytes(choice)
    }
    return (1, *sorted(wanted))


def micro_batches(choice: DomainContext) -> Values:
    """Powers of two up to the whole share of a data rank, which is one too."""
    per_rank = max(choice.spec.train.global_batch // choice.chosen["data"], 1)
    dividing = {size for size in powers_of_two(per_rank) if per_rank % size == 0}
    return tuple(sorted(dividing | {per_rank}))


def batchings(choice: DomainContext) -> Values:
    """All that the data give reason to."""
    if choice.spec.data.kind == "fixed":
        return ("padded",)
    return ("padded", "grouped", "packed") if choice.model.packing else ("padded", "grouped")


def checkpoint_ratios(choice: DomainContext) -> Values:
    """Quarters, where there are blocks."""
    return CHECKPOINT_RATIOS if choice.model.blocks else (0.0,)


def checkpoint_modes(choice: DomainContext) -> Values:
    """Selective too on GPUs: a CPU spends its time in the matmuls whose outputs it keeps."""
    return ("full", "selective") if choice.on_cuda else ("full",)


def optimizer_offloads(choice: DomainContext) -> Values:
    """To host memory where a rank's share of the states would fill half of a GPU.

    On one rank of DeepSpeed always, since ZeRO does nothing else there; with FSDP2 as the
    specification has it for parameters, which go along.
    """
    chosen, named = choice.chosen, choice.spec.space.offload_parameters
    if chosen["engine"] == "torch" and named is not None:
        return named
    if chosen["engine"] == "deepspeed" and chosen["data"] == 1 and chosen["zero_stage"] > 0:
        return ("cpu",)
    split = chosen["data"] * chosen["tensor"] * chosen["pipeline"]
    return ("none", "cpu") if choice.on_cuda and _is_tight(choice, split) else ("none",)


def parameter_offloads(choice: DomainContext) -> Values:
    """With FSDP2 where the optimizer states go; with ZeRO-3 also weights alone."""
    chosen = choice.chosen
    if chosen["engine"] == "torch":
        return (chosen["offload_optimizer"],)
    able = choice.on_cuda and chosen["zero_stage"] == 3 and chosen["offload_optimizer"] != "none"
    return ("none", "cpu") if able else ("none",)


def pinnings(choice: DomainContext) -> Values:
    """Always where there is a GPU to copy to, as both engines have it by default."""
    return (choice.on_cuda,)


def attentions(choice: DomainContext) -> Values:
    """All that there are; on GPUs no eager one beside those that are fused."""
    there = tuple(name for name in choice.model.attentions if not choice.cluster.lack(name))
    if not choice.on_cuda:
        return tuple(name for name in there if not name.startswith("flash"))
    if choice.spec.train.precision == "fp32":
        there = tuple(name for name in there if not name.startswith("flash"))
    return tuple(name for name in there if name != "eager") or there


def compiles(choice: DomainContext) -> Values:
    """Both ways on GPUs."""
    able = choice.on_cuda and not choice.model.compile_refusal
    return (False, True) if able and not choice.cluster.lack("compile") else (False,)


def _is_tight(choice: DomainContext, ranks: int) -> bool:
    """Whether model states, split over so many ranks, leave little room for activations."""
    return _state_bytes(choice) / ranks > _limit_bytes(choice) / 2


def _state_bytes(choice: DomainContext) -> int:
    """Weights, and gradients and moments of those that are trained."""
    model = choice.model
    frozen = model.parameters - model.trainable_parameters
    return _STATE_BYTES * model.trainable_parameters + 4 * frozen


def _limit_bytes(choice: DomainContext) -> int:
    return choice.cluster.memory_limit_bytes or _LEAST_DEVICE_BYTES
