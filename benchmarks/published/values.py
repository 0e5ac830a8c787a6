"""Values of a row of a published table, in the words of this project."""

from dataclasses import dataclass
from typing import Literal

from search_spaces.costs.footprint import Compute

Kind = Literal["fp32", "tf32", "fp16", "bf16", "fp8", "nvfp4"]
"""Number format of the matmuls."""
Loss = Literal["plain", "in_place", "linear"]
"""How cross-entropy is computed: by torch's operators; by one kernel that turns logits into their
gradient in place; or together with the head, so that there never are whole logits."""
Engine = Literal["megatron", "megatron-deepspeed", "deepspeed", "fsdp", "ddp", "hf", "jax", "other"]
"""Who trains: `hf` is the Trainer of transformers (or peft) on plain ranks, `ddp` any other
loop without sharding, one rank included."""
Generation = Literal["volta", "turing", "ampere", "ada", "hopper", "blackwell", "cdna", "unknown"]
MemoryKind = Literal["allocated", "reserved", "device", "unknown"]
"""What the peak counts: tensors, the allocator's segments, the whole GPU, or not stated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The model and the length of its samples: all that tracing asks for, the method apart."""

    family: str  # a name in `families.FAMILIES`
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    ffn: int
    vocab: int
    tied: bool  # embedding and head are one weight
    seq_len: int  # tokens
    task: Literal["causal-lm", "masked-lm", "sequence-classification"]
    experts: int = 1
    per_token: int = 1  # experts that a token uses


@dataclass(frozen=True, slots=True, kw_only=True)
class States:
    """Parameters and what belongs to them, in bytes before any sharding.

    `weight_bytes`, `gradient_bytes` and `state_bytes` (fp32 copy and moments) are of one trained
    parameter, `frozen_bytes` is of one frozen parameter of the blocks: under 2 where the base is
    quantised to `frozen_bits`. What is frozen outside the blocks is held in 16 or 32 bits.
    """

    compute: Compute
    kind: Kind
    weight_bytes: float
    gradient_bytes: float
    state_bytes: float
    frozen_bytes: float
    frozen_bits: int | None  # 4 or 8 where the base is quantised
    optimizer: str  # adam, adam8bit, adafactor, lamb, muon, sgd, lion or none (no step at all)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The layout of a run: engine, sharding, ranks and execution of a step.

    `shards` is over how many ranks `zero_stage` splits. `tensor` is that of the stages on average
    where they differ (see `Run.stages`). What the table leaves open is filled in by the rules
    of `layouts` and `execution`; the `_stated` fields say where the table said it.
    """

    engine: Engine
    zero_stage: Literal[0, 1, 2, 3]
    shards: int
    hybrid: bool  # HSDP: shards are replicated
    offload_optimizer: bool
    offload_parameters: bool
    offload_activations: bool
    offload_nvme: bool
    checkpoint_ratio: float  # share of blocks (or operators) that are recomputed
    checkpoint_mode: Literal["none", "full", "selective"]
    checkpoint_stated: bool
    attention: Literal["eager", "flash"]
    attention_stated: bool
    fused_kernels: bool  # fused operators beside attention: Liger, apex, DeepSpeed's layer
    loss: Loss
    compile: bool
    tensor: int
    sequence_parallel: bool
    pipeline: int
    chunks: int  # model chunks a stage holds in an interleaved schedule
    data: int  # ranks that have samples of their own
    context: int  # ranks that share each sample
    experts: int  # ranks of the others that divide experts
    micro_batch: int
    accumulation: int
    global_batch: int
    batch_stated: bool  # micro-batch given or following from what is


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A pipeline stage of a run whose stages differ."""

    share: float  # of the model's operators
    tensor: int
    data: int
    checkpoint_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One row: a model, on devices, in a layout, and what was measured.

    `samples_per_second` is of all devices together. A figure that may not be compared is kept
    and its flag is False. `oom` is None where the table does not say.
    """

    source: str  # the file's stem
    line: int  # in the file, its header is line 1
    sets: tuple[str, ...]  # ids of the ranking sets it is in
    origin: str  # column `source`
    model: str  # as written
    shape: Shape
    parameters: float | None  # as written
    device: str  # as written, less remarks
    generation: Generation
    device_memory_gib: float | None
    gpus: int
    method: Literal["full", "lora"]
    lora_rank: int
    lora_targets: tuple[str, ...]  # empty: all linear layers of the blocks
    states: States
    layout: Layout
    stages: tuple[Stage, ...]
    varied: bool  # samples differ in length
    samples_per_second: float | None
    peak_memory_bytes: float | None
    memory_kind: MemoryKind
    oom: bool | None
    throughput_usable: bool
    memory_usable: bool
    fit_usable: bool  # whether it fitted is known and its configuration is told
    extrapolated: bool  # by its authors from other measurements

    @property
    def configuration(self) -> tuple[object, ...]:
        """The run without what was measured: equal for repeats."""
        return (
            self.shape,
            self.device,
            self.device_memory_gib,
            self.gpus,
            self.method,
            self.lora_rank,
            self.lora_targets,
            self.states,
            self.layout,
            self.stages,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Skip:
    """A row that is not read, and why."""

    reason: str
    source: str
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """All rows of a directory."""

    runs: tuple[Run, ...]
    skipped: tuple[Skip, ...]

    @property
    def sources(self) -> tuple[str, ...]:
        """Stems of the files that have runs."""
        return tuple(dict.fromkeys(run.source for run in self.runs))
