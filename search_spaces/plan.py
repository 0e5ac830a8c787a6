"""Plan: one value for every knob of a training run, frozen."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Annotated, Any, Literal, Self, get_args, get_type_hints

from search_spaces.errors import PlanError

Engine = Literal["torch", "deepspeed"]
ZeroStage = Literal[0, 1, 2, 3]
Precision = Literal["fp32", "bf16", "fp16"]
Attention = Literal["eager", "sdpa", "flash_attention_2", "flash_attention_3"]
Batching = Literal["padded", "grouped", "packed"]
PadMultiple = Literal[1, 8, 64, 128]
CheckpointMode = Literal["full", "selective"]
Offload = Literal["none", "cpu", "nvme"]
Schedule = Literal["gpipe", "1f1b", "interleaved", "interleaved_zero_bubble", "zbv", "dualpipev"]
CompileMode = Literal["default", "max-autotune-no-cudagraphs"]
Optimizer = Literal[
    "adamw_fused", "adamw_foreach", "adamw_8bit", "adafactor", "sgd", "lion", "muon", "custom"
]
Compression = Literal["none", "fp16", "bf16", "powersgd"]
Allocator = Literal["default", "expandable_segments", "max_split", "mmap"]

_FROM_ZERO = {"loader_workers", "prefetch_blocks", "reshard_ranks"}  # counts that may be 0
_KEY_DIGITS = 12  # 48 bits: a collision among a million plans has a chance of 1 in 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One value for every knob; a `Plan` that exists has valid values.

    What is said of a field describes its key in the section `space` of a specification, which is a
    list of its type. `search_spaces.knobs` declares all else that is known of it. Constraints of
    engines, models and clusters are in `search_spaces.rules`.

    Raises:
        PlanError: On construction, naming every broken rule at once.
    """

    # parallelism
    engine: Annotated[Engine, "engines: torch, deepspeed"] = "torch"
    tensor: Annotated[int, "ranks that split each block (tensor parallelism)"] = 1
    sequence_parallel: Annotated[
        bool, "with tensor above 1: also split the sequence between matmuls"
    ] = False
    pipeline: Annotated[int, "ranks that split the stack of blocks (pipeline parallelism)"] = 1
    pipeline_schedule: Annotated[
        Schedule,
        "order of the micro-batches in a pipeline: gpipe, 1f1b, interleaved,"
        " interleaved_zero_bubble, zbv, dualpipev",
    ] = "1f1b"
    data: Annotated[
        int, "data-parallel ranks; if unset, all of cluster.workers that tensor and pipeline leave"
    ]
    zero_stage: Annotated[
        ZeroStage,
        "torch: 0 is DDP, 2 is FSDP2 that gathers weights once a step, 3 is FSDP2 that gathers them"
        " in each pass; deepspeed: the ZeRO stage",
    ]
    replicas: Annotated[
        int, "FSDP2 hybrid sharding: groups of data ranks that each hold a whole model"
    ] = 1
    # batches
    micro_batch: Annotated[int, "samples per data rank and forward pass"]
    accumulation: int  # forward passes per optimizer step
    batching: Annotated[Batching, "how samples are arranged in batches: padded, grouped, packed"]
    pad_multiple: Annotated[
        PadMultiple,
        "tokens to a multiple of which padded and grouped rows are padded: 1, 8, 64, 128",
    ] = 1
    # recomputation and offload
    checkpoint_ratio: Annotated[float, "share of the blocks to recompute in backward"]
    checkpoint_mode: Annotated[
        CheckpointMode,
        "what to recompute in a block: full (all of it), or selective (all but matmul and"
        " attention outputs)",
    ] = "full"
    checkpoint_offload: Annotated[
        bool, "keep the saved tensors of recomputed blocks in host memory"
    ] = False
    offload_optimizer: Annotated[
        Offload, "where optimizer states are kept: none (the device), cpu, nvme (deepspeed)"
    ] = "none"
    offload_parameters: Annotated[
        Offload,
        "where weights are kept while not in use: none (the device), cpu, nvme (deepspeed ZeRO-3)",
    ] = "none"
    pin_memory: Annotated[bool, "keep offloaded state in page-locked memory"] = False
    aio_block_kib: Annotated[int, "KiB per NVMe request"] = 1024
    aio_queue_depth: Annotated[int, "NVMe requests in flight per thread"] = 8
    aio_threads: Annotated[int, "threads per rank for NVMe requests"] = 1
    # computation
    attention: Annotated[
        Attention, "attention implementations: sdpa, eager, flash_attention_2, flash_attention_3"
    ]
    precision: Annotated[
        Precision, "precisions to compute in; lossy, so if unset only train.precision is used"
    ]
    compile: Annotated[bool, "compile each block with torch.compile"] = False
    compile_mode: Annotated[
        CompileMode, "mode of torch.compile: default, max-autotune-no-cudagraphs"
    ] = "default"
    optimizer: Annotated[
        Optimizer,
        "implementations of train.optimizer; of adamw: adamw_fused, adamw_foreach, and lossy:"
        " adamw_8bit, adafactor",
    ] = "adamw_fused"
    # communication
    bucket_mib: Annotated[int, "MiB of gradients to reduce together"] = 25
    gradient_as_bucket_view: Annotated[
        bool, "DDP: make gradients views of the buckets, instead of copies"
    ] = True
    ddp_static_graph: Annotated[bool, "DDP: tell torch that the graph is the same in each step"] = (
        False
    )
    compression: Annotated[
        Compression,
        "DDP: compression of gradients for the all-reduce: none; lossy: fp16, bf16, powersgd",
    ] = "none"
    overlap: Annotated[bool, "deepspeed: reduce gradients during backward"] = True
    contiguous_gradients: Annotated[bool, "deepspeed: copy gradients into one buffer"] = True
    prefetch_mib: Annotated[int, "deepspeed ZeRO-3: MiB of weights to prefetch"] = 50
    prefetch_blocks: Annotated[
        int, "FSDP2: blocks whose weights to gather ahead; 0: one, when torch comes to it"
    ] = 0
    reshard_ranks: Annotated[
        int,
        "FSDP2, zero_stage 3: ranks that keep a block's weights between them until backward; 0:"
        " all data ranks",
    ] = 0
    gathered_between_passes: Annotated[
        bool,
        "FSDP2, zero_stage 3: keep weights gathered from a backward pass to the next forward pass"
        " of the same step",
    ] = False
    # process
    loader_workers: Annotated[
        int, "processes per rank that prepare batches; 0: the rank itself does"
    ] = 0
    loader_pin_memory: Annotated[bool, "CUDA: put batches in page-locked memory"] = False
    allocator: Annotated[
        Allocator, "memory allocators: default; CUDA: expandable_segments, max_split; CPU: mmap"
    ] = "default"

    def __post_init__(self) -> None:
        names = (*COUNTS, "checkpoint_ratio", *CHOICES)
        problems = (knob_problem(name, getattr(self, name)) for name in names)
        if broken := tuple(filter(None, problems)):
            raise PlanError(broken)
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


def knob_problem(name: str, value: Any) -> str | None:
    """Returns what is wrong with a value of the knob, in words; None if a plan may have it."""
    if name not in _HINTS:
        return f"{name} is not a knob; the knobs are {', '.join(_HINTS)}"
    if name in COUNTS and (type(value) is not int or value < COUNTS[name]):
        return f"{name} is {value!r}, must be a whole number of {COUNTS[name]} or more"
    choices = CHOICES.get(name)
    if choices and (type(value) not in map(type, choices) or value not in choices):
        return f"{name} is {value!r}, must be one of {', '.join(map(str, choices))}"
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if name == "checkpoint_ratio" and not (number and 0 <= value <= 1):
        return f"checkpoint_ratio is {value!r}, must lie in 0.0 to 1.0"
    return None


def _choices() -> dict[str, tuple[Any, ...]]:
    literals = {name: get_args(hint) for name, hint in _HINTS.items() if get_args(hint)}
    switches = {name: (False, True) for name, hint in _HINTS.items() if hint is bool}
    return literals | switches


_HINTS = get_type_hints(Plan)
COUNTS: Mapping[str, int] = {  # knobs that are whole numbers, each with its minimum
    name: int(name not in _FROM_ZERO) for name, hint in _HINTS.items() if hint is int
}
CHOICES: Mapping[str, tuple[Any, ...]] = _choices()  # knobs with a few values, and these values
DEFAULTS: Mapping[str, Any] = {  # values of inactive knobs
    field.name: field.default for field in fields(Plan) if field.default is not MISSING
}
