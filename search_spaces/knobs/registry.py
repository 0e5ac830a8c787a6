"""The knobs that a sweep searches: which values each has, and when it matters.

To add a knob: a field in `Plan`, one in `SpaceSpec`, an entry here and its words in
`knob_words`; then what refuses it (`rules`), what it sets (`render.py`) and what the worker
does with it (`workers/parallel`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from search_spaces.knobs import search_defaults
from search_spaces.knobs.search_defaults import Chosen, DomainContext, Values
from search_spaces.plan import DEFAULTS, Plan
from search_spaces.spec.schema import SweepSpec

_ZERO = ("engine", "zero_stage")
_OFFLOADS = ("offload_optimizer", "offload_parameters")


def always(_: Chosen) -> bool:
    """Of a knob that changes something whatever the others are."""
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """One dimension of the space.

    `default` gives the values to search where the spec names none; nothing keeps the knob at
    rest. `is_active` tells whether the knob changes anything given the knobs before it: where it
    does not, it stands at rest (`plan.DEFAULTS`), so that no plan has two names. `depends_on` names
    the knobs before it that these two depend on, and they see no others. `lossy` tells whether a
    value changes the numerics of what the spec trains. `memory` is 1 if a larger value never
    takes less memory, -1 if it never takes more, 0 if nobody knows.
    """

    name: str  # of the field in Plan and in SpaceSpec
    default: Callable[[DomainContext], Values] | None = None
    is_active: Callable[[Chosen], bool] = always
    depends_on: tuple[str, ...] = ()
    lossy: Callable[[Any, SweepSpec], bool] = lambda _, __: False
    memory: Literal[-1, 0, 1] = 0

    def values(self, choice: DomainContext) -> Values:
        """What is searched at this point of the space: the spec's own list goes first."""
        if not self.is_active(choice.chosen):
            return (DEFAULTS[self.name],)
        named: Values | None = getattr(choice.spec.space, self.name)
        if named is not None:
            return tuple(dict.fromkeys(named))
        return self.default(choice) if self.default else (DEFAULTS[self.name],)


def is_sharded(chosen: Chosen) -> bool:
    """Whether data ranks split any state."""
    return bool(chosen["zero_stage"] >= (2 if chosen["engine"] == "torch" else 1))


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
    Knob(name="accelerator", default=search_defaults.accelerators),
    Knob(name="engine", default=search_defaults.engines),
    Knob(name="tensor", default=search_defaults.tensor_degrees),
    Knob(
        name="sequence_parallel",
        default=search_defaults.sequence_splits,
        is_active=lambda chosen: chosen["tensor"] > 1,
        depends_on=("engine", "tensor"),
    ),
    Knob(
        name="pipeline", default=search_defaults.pipeline_degrees, depends_on=("engine", "tensor")
    ),
    Knob(
        name="pipeline_schedule",
        default=search_defaults.pipeline_schedules,
        is_active=lambda chosen: chosen["pipeline"] > 1,
        depends_on=("pipeline",),
    ),
    Knob(
        name="data",
        default=search_defaults.data_degrees,
        depends_on=("accelerator", "tensor", "pipeline"),
    ),
    Knob(name="zero_stage", default=search_defaults.zero_stages, depends_on=("engine", "data")),
    Knob(
        name="replicas",
        default=search_defaults.replica_counts,
        is_active=lambda chosen: chosen["engine"] == "torch" and is_sharded(chosen),
        depends_on=(*_ZERO, "data", "tensor", "pipeline"),
    ),
    Knob(name="micro_batch", default=search_defaults.micro_batches, depends_on=("data",), memory=1),
    Knob(name="checkpoint_ratio", default=search_defaults.checkpoint_ratios, memory=-1),
    Knob(
        name="checkpoint_mode",
        default=search_defaults.checkpoint_modes,
        is_active=_is_checkpointed,
        depends_on=("checkpoint_ratio",),
    ),
    Knob(name="checkpoint_offload", is_active=_is_checkpointed, depends_on=("checkpoint_ratio",)),
    Knob(
        name="offload_optimizer",
        default=search_defaults.optimizer_offloads,
        is_active=is_sharded,
        depends_on=(*_ZERO, "data", "tensor", "pipeline"),
    ),
    Knob(
        name="offload_parameters",
        default=search_defaults.parameter_offloads,
        is_active=is_sharded,
        depends_on=(*_ZERO, "offload_optimizer"),
    ),
    Knob(
        name="pin_memory",
        default=search_defaults.pinnings,
        is_active=_is_offloaded,
        depends_on=_OFFLOADS,
    ),
    Knob(name="aio_block_kib", is_active=_is_on_nvme, depends_on=_OFFLOADS),
    Knob(name="aio_queue_depth", is_active=_is_on_nvme, depends_on=_OFFLOADS),
    Knob(name="aio_threads", is_active=_is_on_nvme, depends_on=_OFFLOADS),
    Knob(name="attention", default=search_defaults.attentions),
    Knob(
        name="precision",
        default=lambda choice: (choice.spec.train.precision,),
        lossy=lambda value, spec: value != spec.train.precision,
    ),
    Knob(name="batching", default=search_defaults.batchings),
    Knob(name="compile", default=search_defaults.compiles),
    Knob(name="optimizer", lossy=lambda value, _: value in {"adamw_8bit", "adafactor"}),
    Knob(
        name="bucket_mib",
        is_active=lambda chosen: _is_ddp(chosen) or _is_zero(chosen),
        depends_on=(*_ZERO, "data"),
    ),
    Knob(name="gradient_as_bucket_view", is_active=_is_ddp, depends_on=(*_ZERO, "data")),
    Knob(
        name="compression",
        is_active=_is_ddp,
        depends_on=(*_ZERO, "data"),
        lossy=lambda value, _: value != "none",
    ),
    Knob(name="overlap", is_active=_is_zero, depends_on=_ZERO),
    Knob(name="contiguous_gradients", is_active=_is_zero, depends_on=_ZERO),
    Knob(
        name="prefetch_mib",
        is_active=lambda chosen: _is_zero(chosen) and chosen["zero_stage"] == 3,
        depends_on=_ZERO,
    ),
    Knob(name="loader_workers"),
    Knob(name="loader_pin_memory"),
    Knob(name="allocator"),
)
# accumulation is no knob: it follows from the global batch, micro_batch and data


def is_lossless(plan: Plan, spec: SweepSpec) -> bool:
    """Whether the plan solves the very problem that the spec states."""
    return not any(knob.lossy(getattr(plan, knob.name), spec) for knob in KNOBS)
