"""A plan: every knob of one training run, as one frozen value."""

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
    """One point of the search space; a `Plan` that exists obeys its own rules.

    What an engine, a model or a cluster refuses is `search_spaces.rules`.

    Raises:
        PlanError: On construction, naming every broken rule at once.
    """

    # where the model is split
    engine: Engine = "torch"
    tensor: int = 1  # ranks that split each block
    sequence_parallel: bool = False  # tensor ranks split the sequence between matmuls too
    pipeline: int = 1  # ranks that split the stack of blocks
    pipeline_schedule: Schedule = "1f1b"  # in which order stages take micro-batches
    data: int  # data-parallel ranks
    zero_stage: ZeroStage  # torch: 0 DDP, 2 FSDP2 kept gathered until backward, 3 FSDP2
    replicas: int = 1  # hybrid shard: groups of data ranks that each hold a whole model
    # how a step is laid out
    micro_batch: int  # samples per data rank and forward pass
    accumulation: int  # forward passes per optimizer step
    batching: Batching  # how the samples of a step are laid into micro-batches
    # what is kept, recomputed or moved away
    checkpoint_ratio: float  # share of blocks recomputed in backward, 0.0 to 1.0
    checkpoint_mode: CheckpointMode = "full"  # selective keeps matmul and attention outputs
    checkpoint_offload: bool = False  # what recomputed blocks keep lies in host memory
    offload_optimizer: Offload = "none"  # where optimizer states lie between steps
    offload_parameters: Offload = "none"  # where weights lie while they are not used
    pin_memory: bool = False  # page-locked host memory for what is offloaded
    aio_block_kib: int = 1024  # of one request to NVMe
    aio_queue_depth: int = 8  # requests to NVMe under way in each thread
    aio_threads: int = 1  # threads that talk to NVMe, per rank
    # how it is computed
    attention: Attention
    precision: Precision
    compile: bool = False  # each block by torch.compile
    optimizer: Optimizer = "adamw_fused"
    # how ranks talk
    bucket_mib: int = 25  # gradients that are reduced together
    gradient_as_bucket_view: bool = True  # DDP: gradients lie in the buckets, not beside them
    compression: Compression = "none"  # DDP: what gradients are sent as
    overlap: bool = True  # deepspeed: reduce gradients during backward
    contiguous_gradients: bool = True  # deepspeed: copy gradients into one buffer as they come
    prefetch_mib: int = 50  # deepspeed ZeRO-3: weights fetched ahead
    # the process around it
    loader_workers: int = 0  # processes that prepare batches, per rank; 0: the rank itself
    loader_pin_memory: bool = False  # batches in page-locked memory
    allocator: Allocator = "default"  # of device memory; another one needs other workers
    # where it runs
    accelerator: str = ""  # which of the nodes' kinds; nothing: a cluster of one kind

    def __post_init__(self) -> None:
        if problems := tuple(_broken_rules(self)):
            raise PlanError(problems)
        # one form for equal ratios (1 and 1.0, -0.0 and 0.0), so that equal plans have one key
        object.__setattr__(self, "checkpoint_ratio", float(self.checkpoint_ratio) + 0.0)

    @property
    def world_size(self) -> int:
        """Ranks that this plan needs: tensor x pipeline x data."""
        return self.tensor * self.pipeline * self.data

    @property
    def global_batch(self) -> int:
        """Samples per optimizer step: micro_batch x accumulation x data."""
        return self.micro_batch * self.accumulation * self.data

    @property
    def key(self) -> str:
        """Stable name of this plan: the hash of its canonical form.

        Knobs at rest are left out, so that a plan keeps its name when new knobs come.
        """
        told = {
            name: value for name, value in self.as_dict().items() if value != DEFAULTS.get(name)
        }
        canonical = json.dumps(told, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:_KEY_DIGITS]

    def as_dict(self) -> dict[str, Any]:
        """The knobs by name, as JSON has them."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def from_dict(cls, knobs: Mapping[str, Any]) -> Self:
        """The plan with these knobs.

        Raises:
            PlanError: If a knob is missing, unknown or has a value that is not its own.
        """
        names = [field.name for field in fields(cls)]
        problems = [
            f"{name} is missing" for name in names if name not in DEFAULTS and name not in knobs
        ]
        problems += [
            f"{name} is no knob, the knobs are {', '.join(names)}"
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
    words = {name: get_args(hint) for name, hint in _HINTS.items() if get_args(hint)}
    switches = {name: (False, True) for name, hint in _HINTS.items() if hint is bool}
    return words | switches


_HINTS = get_type_hints(Plan)
COUNTS: Mapping[str, int] = {  # the knobs that are whole numbers, each with its least
    name: int(name != "loader_workers") for name, hint in _HINTS.items() if hint is int
}
NAMES = frozenset(name for name, hint in _HINTS.items() if hint is str)  # of the cluster's own
CHOICES: Mapping[str, tuple[Any, ...]] = _choices()  # the knobs that are one of a few values
DEFAULTS: Mapping[str, Any] = {  # what a knob is where nothing depends on it
    field.name: field.default for field in fields(Plan) if field.default is not MISSING
}
