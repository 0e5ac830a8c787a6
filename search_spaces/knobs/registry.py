"""Registry of the knobs: their values and the conditions under which they are active.

To add a knob, add a field to `Plan` and `SpaceSpec`, an entry here and its documentation in
`labels.py`; then the rules that reject its values (`rules`), the settings that it becomes
(`settings/render.py`) and the code that applies them (`workers/parallel`).
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
    """The condition of a knob that is always active."""
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """One dimension of the space.

    Attributes:
        name: Name of the field in `Plan` and in `SpaceSpec`.
        default: Returns the values to search if the specification names none. Without it, the
            knob keeps its default (`plan.DEFAULTS`).
        is_active: Returns True if the knob changes anything, given the knobs before it. An
            inactive knob has its default, so that no plan has two names.
        depends_on: Knobs before this one that `default` and `is_active` read; they see no others.
        lossy: Returns True if a value changes the numerics of the specified training.
        memory: 1 if a larger value never takes less memory, -1 if it never takes more, 0 if the
            direction is unknown.
    """

    name: str
    default: Callable[[DomainContext], Values] | None = None
    is_active: Callable[[Chosen], bool] = always
    depends_on: tuple[str, ...] = ()
    lossy: Callable[[Any, SweepSpec], bool] = lambda _, __: False
    memory: Literal[-1, 0, 1] = 0

    def values(self, choice: DomainContext) -> Values:
        """Returns the values to search at a point of the space; the specification's list wins."""
        if not self.is_active(choice.chosen):
            return (DEFAULTS[self.name],)
        specified: Values | None = getattr(choice.spec.space, self.name)
        if specified is not None:
            return tuple(dict.fromkeys(specified))
        return self.default(choice) if self.default else (DEFAULTS[self.name],)


def is_sharded(chosen: Chosen) -> bool:
    """Returns True if data ranks shard any state."""
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
# accumulation is not a knob: it follows from the global batch, micro_batch and data


def is_lossless(plan: Plan, spec: SweepSpec) -> bool:
    """Returns True if the plan trains exactly as the specification says, numerics included."""
    return not lossy_knobs(plan, spec)


def lossy_knobs(plan: Plan, spec: SweepSpec) -> tuple[str, ...]:
    """Returns the knobs whose values change the numerics of the specified training."""
    return tuple(knob.name for knob in KNOBS if knob.lossy(getattr(plan, knob.name), spec))
