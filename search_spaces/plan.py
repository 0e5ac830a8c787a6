"""Plan: one value for every knob of a training run, frozen."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, Literal, Self, get_args, get_type_hints

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
Loss = Literal["whole", "compiled", "chunked", "fused"]
VocabMultiple = Literal[1, 64, 128]
MlpTiles = Literal[1, 2, 4, 8]
Float8 = Literal["none", "tensorwise", "rowwise"]
ExpertsKernel = Literal["eager", "batched_mm", "grouped_mm"]
AdamW = Literal["adamw_fused", "adamw_foreach", "adamw_8bit", "adamw_8bit_paged"]
Optimizer = Literal[AdamW, "adafactor", "sgd", "lion", "muon", "custom"]
States = Literal["fp32", "bf16", "bf16_stochastic"]
Allocator = Literal["default", "expandable_segments", "max_split", "mmap"]

_FROM_ZERO = {  # counts that may be 0
    *("micro_batch_tokens", "loader_workers", "prefetch_blocks", "reshard_ranks"),
    *("selective_blocks", "offloaded_blocks"),
}
_KEY_DIGITS = 12  # 48 bits: a collision among a million plans has a chance of 1 in 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One value for every knob; a `Plan` that exists has valid values.

    `specification/descriptions.yaml` says what each field means, and `search_spaces.knobs` declares
    all else that is known of it. Constraints of engines, models and clusters are in
    `search_spaces.rules`.

    Raises:
        PlanError: On construction, naming every broken rule at once.
    """

    # parallelism
    engine: Engine = "torch"
    tensor: int = 1
    sequence_parallel: bool = False
    pipeline: int = 1
    pipeline_schedule: Schedule = "1f1b"
    data: int
    zero_stage: ZeroStage
    replicas: int = 1
    experts: int = 1  # neighbouring data ranks that divide the experts of each layer
    context: int = 1  # neighbouring data ranks that divide the tokens of their samples
    # batches
    micro_batch: int
    accumulation: int  # forward passes per optimizer step, or more if tokens limit them
    batching: Batching
    pad_multiple: PadMultiple = 1
    micro_batch_tokens: int = 0
    # recomputation and offload
    checkpoint_ratio: float
    checkpoint_mode: CheckpointMode = "full"
    checkpoint_offload: bool = False
    selective_blocks: int = 0  # of those recomputed, if the others are not
    offloaded_blocks: int = 0
    offload_optimizer: Offload = "none"
    offload_parameters: Offload = "none"
    pin_memory: bool = False
    # computation
    attention: Attention
    precision: Precision
    compile: bool = False
    compile_mode: CompileMode = "default"
    checkpoint_budget: float = 1.0  # of the activations that a compiled block saves by default
    float8: Float8 = "none"
    loss: Loss = "whole"
    vocab_multiple: VocabMultiple = 1
    mlp_tiles: MlpTiles = 1
    experts_kernel: ExpertsKernel = "grouped_mm"
    optimizer: Optimizer = "adamw_fused"
    states: States = "fp32"
    # communication
    bucket_mib: int = 25
    gradient_as_bucket_view: bool = True
    ddp_static_graph: bool = False
    overlap: bool = True
    contiguous_gradients: bool = True
    prefetch_mib: int = 50
    prefetch_blocks: int = 0
    reshard_ranks: int = 0
    gathered_between_passes: bool = False
    # process
    loader_workers: int = 0
    loader_pin_memory: bool = False
    allocator: Allocator = "default"

    def __post_init__(self) -> None:
        names = (*COUNTS, *SHARES, *CHOICES)
        problems = (knob_problem(name, getattr(self, name)) for name in names)
        if broken := tuple(filter(None, problems)):
            raise PlanError(broken)
        # one form of equal ratios (1 and 1.0, -0.0 and 0.0), so that equal plans have one key
        for name in SHARES:
            object.__setattr__(self, name, float(getattr(self, name)) + 0.0)

    @property
    def world_size(self) -> int:
        """Ranks of this plan: tensor x pipeline x data."""
        return self.tensor * self.pipeline * self.data

    @property
    def sample_ranks(self) -> int:
        """Data ranks, or groups of them, with samples of their own: data / context."""
        return self.data // self.context

    @property
    def global_batch(self) -> int:
        """Samples per optimizer step: micro_batch x accumulation x data / context."""
        return self.micro_batch * self.accumulation * self.sample_ranks

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
    if name in SHARES and not (number and 0 <= value <= 1):
        return f"{name} is {value!r}, must lie in 0.0 to 1.0"
    return None


def _choices() -> dict[str, tuple[Any, ...]]:
    literals = {name: get_args(hint) for name, hint in _HINTS.items() if get_args(hint)}
    switches = {name: (False, True) for name, hint in _HINTS.items() if hint is bool}
    return literals | switches


_HINTS = get_type_hints(Plan)
SHARES = tuple(name for name, hint in _HINTS.items() if hint is float)  # from 0.0 to 1.0
COUNTS: Mapping[str, int] = {  # knobs that are whole numbers, each with its minimum
    name: int(name not in _FROM_ZERO) for name, hint in _HINTS.items() if hint is int
}
CHOICES: Mapping[str, tuple[Any, ...]] = _choices()  # knobs with a few values, and these values
DEFAULTS: Mapping[str, Any] = {  # values of inactive knobs
    field.name: field.default for field in fields(Plan) if field.default is not MISSING
}
