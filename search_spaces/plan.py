"""Plan: one value for every knob of a training run, frozen."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, Literal, Self, get_args, get_type_hints

from search_spaces.errors import PlanError

Engine = Literal["torch", "deepspeed"]
ZeroStage = Literal[0, 1, 2, 3]
Precision = Literal["fp32", "bf16", "fp16"]
Attention = Literal["eager", "sdpa", "flash_attention_2", "flash_attention_3"]
Batching = Literal["padded", "grouped", "packed"]
CheckpointMode = Literal["full", "selective"]
Offload = Literal["none", "cpu", "nvme"]
Schedule = Literal["gpipe", "1f1b", "interleaved"]
Optimizer = Literal["adamw_fused", "adamw_foreach", "adamw_8bit", "adafactor"]
Compression = Literal["none", "fp16", "bf16", "powersgd"]
Allocator = Literal["default", "expandable_segments", "max_split", "mmap"]

_KEY_DIGITS = 12  # 48 bits: a collision among a million plans has a chance of 1 in 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One value for every knob; a `Plan` that exists has valid values.

    Constraints of engines, models and clusters are in `search_spaces.rules`.

    Raises:
        PlanError: On construction, naming every broken rule at once.
    """

    # parallelism
    engine: Engine = "torch"
    tensor: int = 1  # ranks that split each block
    sequence_parallel: bool = False  # tensor ranks also split the sequence between matmuls
    pipeline: int = 1  # ranks that split the stack of blocks
    pipeline_schedule: Schedule = "1f1b"  # order in which stages process micro-batches
    data: int  # data-parallel ranks
    zero_stage: ZeroStage  # torch: 0 DDP, 2 FSDP2 kept gathered until backward, 3 FSDP2
    replicas: int = 1  # hybrid sharding: groups of data ranks that each hold a whole model
    # batches
    micro_batch: int  # samples per data rank and forward pass
    accumulation: int  # forward passes per optimizer step
    batching: Batching  # arrangement of a step's samples in micro-batches
    # recomputation and offload
    checkpoint_ratio: float  # share of blocks recomputed in backward, 0.0 to 1.0
    checkpoint_mode: CheckpointMode = "full"  # selective saves matmul and attention outputs
    checkpoint_offload: bool = False  # saved tensors of recomputed blocks in host memory
    offload_optimizer: Offload = "none"  # place of optimizer states between steps
    offload_parameters: Offload = "none"  # place of weights while they are not used
    pin_memory: bool = False  # page-locked host memory for offloaded state
    aio_block_kib: int = 1024  # per NVMe request
    aio_queue_depth: int = 8  # NVMe requests in flight per thread
    aio_threads: int = 1  # threads per rank for NVMe requests
    # computation
    attention: Attention
    precision: Precision
    compile: bool = False  # torch.compile on each block
    optimizer: Optimizer = "adamw_fused"
    # communication
    bucket_mib: int = 25  # gradients that are reduced together
    gradient_as_bucket_view: bool = True  # DDP: gradients are views of the buckets, not copies
    compression: Compression = "none"  # DDP: compression of gradients for the all-reduce
    overlap: bool = True  # deepspeed: reduce gradients during backward
    contiguous_gradients: bool = True  # deepspeed: copy gradients into one buffer
    prefetch_mib: int = 50  # deepspeed ZeRO-3: weights to prefetch
    # process
    loader_workers: int = 0  # processes per rank that prepare batches; 0: the rank itself
    loader_pin_memory: bool = False  # batches in page-locked memory
    allocator: Allocator = "default"  # of device memory; another one needs new workers
    # nodes
    accelerator: str = ""  # kind of node; empty on a cluster of one kind

    def __post_init__(self) -> None:
        if problems := tuple(_broken_rules(self)):
            raise PlanError(problems)
        # one form of equal ratios (1 and 1.0, -0.0 and 0.0), so that equal plans have one key
        object.__setattr__(self, "checkpoint_ratio", float(self.checkpoint_ratio) + 0.0)

    @property
    def world_size(self) -> int:
        """Ranks of this plan: tensor x pipeline x data."""
        return self.tensor * self.pipeline * self.data

    @property
    def global_batch(self) -> int:
        """Samples per optimizer step: micro_batch x accumulation x data."""
        return self.micro_batch * self.accumulation * self.data

    @property
    def key(self) -> str:
        """Stable name of this plan: a hash of its canonical form.

        Knobs at their default are left out, so a plan keeps its name when new knobs are added.
        """
        knobs = {
            name: value for name, value in self.as_dict().items() if value != DEFAULTS.get(name)
        }
        canonical = json.dumps(knobs, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:_KEY_DIGITS]

    def as_dict(self) -> dict[str, Any]:
        """Returns the knobs by name, as JSON values."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def from_dict(cls, knobs: Mapping[str, Any]) -> Self:
        """Makes a plan from its knobs by name.

        Raises:
            PlanError: If a knob is missing or unknown, or a value is invalid.
        """
        names = [field.name for field in fields(cls)]
        problems = [
            f"{name} is missing" for name in names if name not in DEFAULTS and name not in knobs
        ]
        problems += [
            f"{name} is not a knob; the knobs are {', '.join(names)}"
            for name in knobs
            if name not in names
        ]
        if problems:
            raise PlanError(tuple(problems))
        return cls(**knobs)


def _broken_rules(plan: Plan) -> Iterator[str]:
    for name, least in COUNTS.items():
        count = getattr(plan, name)
        if type(count) is not int or count < least:
            yield f"{name} is {count!r}, must be a whole number of {least} or more"
    ratio = plan.checkpoint_ratio
    if isinstance(ratio, bool) or not isinstance(ratio, int | float) or not 0 <= ratio <= 1:
        yield f"checkpoint_ratio is {ratio!r}, must lie in 0.0 to 1.0"
    for name in NAMES:
        if not isinstance(getattr(plan, name), str):
            yield f"{name} is {getattr(plan, name)!r}, must be a name"
    for name, choices in CHOICES.items():
        value = getattr(plan, name)
        if type(value) not in map(type, choices) or value not in choices:
            yield f"{name} is {value!r}, must be one of {', '.join(map(str, choices))}"


def _choices() -> dict[str, tuple[Any, ...]]:
    literals = {name: get_args(hint) for name, hint in _HINTS.items() if get_args(hint)}
    switches = {name: (False, True) for name, hint in _HINTS.items() if hint is bool}
    return literals | switches


_HINTS = get_type_hints(Plan)
COUNTS: Mapping[str, int] = {  # knobs that are whole numbers, each with its minimum
    name: int(name != "loader_workers") for name, hint in _HINTS.items() if hint is int
}
NAMES = frozenset(name for name, hint in _HINTS.items() if hint is str)  # names of the cluster's
CHOICES: Mapping[str, tuple[Any, ...]] = _choices()  # knobs with a few values, and these values
DEFAULTS: Mapping[str, Any] = {  # values of inactive knobs
    field.name: field.default for field in fields(Plan) if field.default is not MISSING
}
