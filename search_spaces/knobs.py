"""The knobs that a sweep searches: which values each has, when it matters, what it trades.

To add a knob: a field in `Plan`, one in `SpaceSpec`, an entry here; then what refuses it
(`rules`), what it sets (`render.py`) and what the worker does with it (`workers/parallel`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from search_spaces.facts import ClusterFacts, ModelFacts
from search_spaces.plan import RESTS
from search_spaces.spec.schema import SweepSpec

Values = tuple[Any, ...]
Chosen = Mapping[str, Any]

CHECKPOINT_RATIOS = (0.0, 0.25, 0.5, 0.75, 1.0)  # what is searched where the spec names none
MOST_TENSOR_RANKS = 8  # by default: beyond a node, tensor parallelism waits for the network


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What the values of a knob may depend on; `chosen` holds the knobs before it."""

    spec: SweepSpec
    model: ModelFacts
    cluster: ClusterFacts
    workers: int
    chosen: Chosen


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """One dimension of the space.

    `default` gives the values to search where the spec names none; nothing keeps the knob at
    rest. `matters` tells whether the knob changes anything given the knobs before it: where it
    does not, it stands at rest (`plan.RESTS`), so that no plan has two names. `lossy` tells
    whether a value changes the numerics of what the spec trains. `memory` is 1 if a larger
    value never takes less memory, -1 if it never takes more, 0 if nobody knows.
    """

    name: str  # of the field in Plan and in SpaceSpec
    default: Callable[[Choice], Values] | None = None
    matters: Callable[[Chosen], bool] = lambda _: True
    lossy: Callable[[Any, SweepSpec], bool] = lambda _, __: False
    memory: Literal[-1, 0, 1] = 0

    def values(self, choice: Choice) -> Values:
        """What is searched at this point of the space: the spec's own list goes first."""
        if self.name in RESTS and not self.matters(choice.chosen):
            return (RESTS[self.name],)
        named: Values | None = getattr(choice.spec.space, self.name)
        if named is not None:
            return tuple(dict.fromkeys(named))
        return self.default(choice) if self.default else (RESTS[self.name],)


def _powers_of_two(most: int) -> Values:
    return tuple(2**power for power in range(most.bit_length()) if 2**power <= most)


def _tensor_degrees(choice: Choice) -> Values:
    facts = choice.model.tensor
    if facts.refusal:
        return (1,)
    return tuple(
        degree
        for degree in _powers_of_two(min(choice.workers, MOST_TENSOR_RANKS))
        if choice.workers % degree == 0
        if all(count % degree == 0 for _, count in facts.divisors)
    )


def _pipeline_degrees(choice: Choice) -> Values:
    if choice.model.pipeline_refusal or choice.chosen["engine"] != "torch":
        return (1,)
    left = choice.workers // choice.chosen["tensor"]
    most = min(left, max(choice.model.blocks, 1))
    return tuple(degree for degree in _powers_of_two(most) if left % degree == 0)


def _data_degrees(choice: Choice) -> Values:
    chosen = choice.chosen
    return (max(choice.workers // (chosen["tensor"] * chosen["pipeline"]), 1),)


def _zero_stages(choice: Choice) -> Values:
    if choice.chosen["data"] == 1:
        return (0,)
    return (0, 2, 3) if choice.chosen["engine"] == "torch" else (0, 1, 2, 3)


def _micro_batches(choice: Choice) -> Values:
    per_rank = max(choice.spec.train.global_batch // choice.chosen["data"], 1)
    dividing = {size for size in _powers_of_two(per_rank) if per_rank % size == 0}
    return tuple(sorted(dividing | {per_rank}))


def _batchings(choice: Choice) -> Values:
    if choice.spec.data.kind == "fixed":
        return ("padded",)
    return ("padded", "grouped", "packed") if choice.model.packing else ("padded", "grouped")


def _checkpoint_ratios(choice: Choice) -> Values:
    return CHECKPOINT_RATIOS if choice.model.blocks else (0.0,)


def _optimizer_offloads(choice: Choice) -> Values:
    return ("none", "cpu") if choice.cluster.device == "cuda" else ("none",)


def _parameter_offloads(choice: Choice) -> Values:
    if choice.chosen["engine"] == "torch":  # FSDP2 offloads weights and states together
        return (choice.chosen["offload_optimizer"],)
    return _optimizer_offloads(choice) if choice.chosen["zero_stage"] == 3 else ("none",)


def _compiles(choice: Choice) -> Values:
    able = choice.cluster.device == "cuda" and not choice.model.compile_refusal
    return (False, True) if able and not choice.cluster.lack("compile") else (False,)


def _is_sharded(chosen: Chosen) -> bool:
    least = 2 if chosen["engine"] == "torch" else 1
    return bool(chosen["zero_stage"] >= least)


def _is_ddp(chosen: Chosen) -> bool:
    return bool(chosen["engine"] == "torch" and chosen["zero_stage"] == 0 and chosen["data"] > 1)


def _is_zero(chosen: Chosen) -> bool:
    return bool(chosen["engine"] == "deepspeed" and chosen["zero_stage"] >= 1)


def _is_offloaded(chosen: Chosen) -> bool:
    return {chosen["offload_optimizer"], chosen["offload_parameters"]} != {"none"}


def _is_on_nvme(chosen: Chosen) -> bool:
    return "nvme" in (chosen["offload_optimizer"], chosen["offload_parameters"])


def _is_checkpointed(chosen: Chosen) -> bool:
    return bool(chosen["checkpoint_ratio"] > 0)


KNOBS: tuple[Knob, ...] = (
    Knob(name="engine", default=lambda _: ("torch",)),
    Knob(name="tensor", default=_tensor_degrees),
    Knob(name="sequence_parallel", matters=lambda chosen: chosen["tensor"] > 1),
    Knob(name="pipeline", default=_pipeline_degrees),
    Knob(name="pipeline_schedule", matters=lambda chosen: chosen["pipeline"] > 1),
    Knob(name="data", default=_data_degrees),
    Knob(name="zero_stage", default=_zero_stages),
    Knob(
        name="replicas",
        matters=lambda chosen: chosen["engine"] == "torch" and _is_sharded(chosen),
    ),
    Knob(name="micro_batch", default=_micro_batches, memory=1),
    Knob(name="batching", default=_batchings),
    Knob(name="checkpoint_ratio", default=_checkpoint_ratios, memory=-1),
    Knob(name="checkpoint_mode", matters=_is_checkpointed),
    Knob(name="checkpoint_offload", matters=_is_checkpointed),
    Knob(name="offload_optimizer", default=_optimizer_offloads, matters=_is_sharded),
    Knob(name="offload_parameters", default=_parameter_offloads, matters=_is_sharded),
    Knob(name="pin_memory", matters=_is_offloaded),
    Knob(name="aio_block_kib", matters=_is_on_nvme),
    Knob(name="aio_queue_depth", matters=_is_on_nvme),
    Knob(name="aio_threads", matters=_is_on_nvme),
    Knob(name="attention", default=lambda choice: choice.model.attentions),
    Knob(
        name="precision",
        default=lambda choice: (choice.spec.train.precision,),
        lossy=lambda value, spec: value != spec.train.precision,
    ),
    Knob(name="compile", default=_compiles),
    Knob(
        name="optimizer",
        lossy=lambda value, _: value in {"adamw_8bit", "adafactor"},
    ),
    Knob(
        name="bucket_mib", matters=lambda chosen: _is_ddp(chosen) or chosen["engine"] == "deepspeed"
    ),
    Knob(name="gradient_as_bucket_view", matters=_is_ddp),
    Knob(name="compression", matters=_is_ddp, lossy=lambda value, _: value != "none"),
    Knob(name="overlap", matters=_is_zero),
    Knob(name="contiguous_gradients", matters=_is_zero),
    Knob(
        name="prefetch_mib", matters=lambda chosen: _is_zero(chosen) and chosen["zero_stage"] == 3
    ),
    Knob(name="loader_workers"),
    Knob(name="loader_pin_memory"),
    Knob(name="allocator"),
)
# accumulation is no knob: it follows from the global batch, micro_batch and data
