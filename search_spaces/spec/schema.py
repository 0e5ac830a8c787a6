"""What the user asks: the sections of a sweep specification.

Each field's description is its documentation: `plimsoll init` and the spec reference print it.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from search_spaces.plan import Attention, Batching, Engine, Precision, ZeroStage

Task = Literal["causal-lm", "masked-lm", "sequence-classification", "seq2seq"]
Device = Literal["auto", "cpu", "cuda"]
Sampler = Literal["tpe", "gp", "random"]
Count = Annotated[int, Field(ge=1, le=1_000_000_000)]
Ratio = Annotated[float, Field(ge=0, le=1)]
Seed = Annotated[int, Field(ge=0, le=2**32 - 1)]  # NumPy takes no larger one
Seconds = Annotated[float, Field(gt=0)]

GIB = 2**30


class Section(BaseModel):
    """A section of the specification: frozen, and with no key that is not known."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, protected_namespaces=()
    )


class ModelSpec(Section):
    """The model that is trained. Its weights are initialised, never downloaded."""

    name: str = Field(
        min_length=1,
        description="a shipped preset (see `plimsoll models`), a folder with config.json, a Hub id,"
        " or package.module:function returning (module, batch maker)",
    )
    task: Task = Field(
        default="causal-lm",
        description="causal-lm, masked-lm, sequence-classification or seq2seq",
    )
    config: dict[str, Any] = Field(
        default_factory=dict,
        description="fields of the model's config to change, such as num_hidden_layers",
    )
    trust_remote_code: bool = Field(
        default=False, description="run model code that comes with a Hub id or folder"
    )


class DataSpec(Section):
    """What it is trained on. Without files or lengths, each sample fills the sequence length."""

    files: tuple[str, ...] = Field(
        default=(), description="text (.txt, .md) or JSONL (.jsonl) files, read in this order"
    )
    field: str = Field(default="text", description="the field of a JSONL line that holds the text")
    split: Literal["paragraph", "line", "file"] = Field(
        default="paragraph", description="what one sample of a text file is"
    )
    tokenizer: str | None = Field(
        default=None,
        description="a tokenizer.json, or a folder or Hub id that has one;"
        " nothing: a byte-level BPE is trained on the files",
    )
    lengths: dict[Count, Annotated[float, Field(gt=0)]] = Field(
        default_factory=dict,
        description="instead of files: sample lengths in tokens and how often each occurs",
    )

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if self.files and self.lengths:
            raise ValueError("give files or lengths, not both")
        return self

    @property
    def kind(self) -> Literal["text", "lengths", "fixed"]:
        """Where samples come from."""
        if self.files:
            return "text"
        return "lengths" if self.lengths else "fixed"


class ClusterSpec(Section):
    """Where it is trained: which Ray cluster, how many ranks, how much memory each."""

    address: str | None = Field(
        default=None,
        description="Ray cluster to join (host:port, or auto);"
        " nothing: the one this job runs in, else a local one is started",
    )
    device: Device = Field(default="auto", description="auto takes CUDA where the cluster has it")
    workers: Count | Literal["auto"] = Field(
        default="auto", description="ranks, one per GPU or CPU slot; auto takes all there are"
    )
    cpus_per_worker: Count = Field(default=1, description="CPU cores and threads of each rank")
    memory_gib: float | None = Field(
        default=None,
        gt=0,
        description="memory one rank may use, in GiB: on CPU above the bare worker,"
        " on CUDA of the device; nothing: all there is",
    )


class TrainSpec(Section):
    """The training run itself, which a sweep never changes: what is lossless is searched."""

    global_batch: Count = Field(description="samples per optimizer step, all ranks together")
    sequence_length: Count = Field(default=1024, description="longest sample, in tokens")
    optimizer: Literal["adamw"] = Field(default="adamw", description="adamw")
    learning_rate: float = Field(default=1e-4, gt=0, description="of the optimizer, constant")
    weight_decay: float = Field(default=0.0, ge=0, description="of the optimizer")
    precision: Precision = Field(
        default="bf16",
        description="bf16 computes in bfloat16 with fp32 master weights, fp32 in full precision",
    )
    seed: Seed = Field(default=0, description="of the weights and of the data's order")


class SpaceSpec(Section):
    """What is searched: a list of values for each knob; nothing takes Plimsoll's own choice."""

    engine: tuple[Engine, ...] | None = Field(default=None, description="engines: torch")
    zero_stage: tuple[ZeroStage, ...] | None = Field(
        default=None,
        description="0 DDP, 2 FSDP2 that keeps weights gathered until backward, 3 FSDP2",
    )
    micro_batch: tuple[Count, ...] | None = Field(
        default=None, description="samples per rank and forward pass"
    )
    checkpoint_ratio: tuple[Ratio, ...] | None = Field(
        default=None, description="shares of blocks that are recomputed in backward"
    )
    attention: tuple[Attention, ...] | None = Field(
        default=None, description="attention implementations: sdpa, eager"
    )
    precision: tuple[Precision, ...] | None = Field(
        default=None,
        description="precisions; lossy, so that only train.precision is used if this is not given",
    )
    batching: tuple[Batching, ...] | None = Field(
        default=None, description="how samples are laid into batches: padded, grouped, packed"
    )
    data: tuple[Count, ...] | None = Field(
        default=None, description="data-parallel ranks; cluster.workers if this is not given"
    )

    @model_validator(mode="after")
    def _no_empty_lists(self) -> Self:
        empty = [name for name in type(self).model_fields if getattr(self, name) == ()]
        if empty:
            raise ValueError(f"{', '.join(empty)}: needs at least one value, or leave it out")
        return self


class ObjectiveSpec(Section):
    """What is best, and how exactly it is measured."""

    metric: Literal["samples_per_second"] = Field(
        default="samples_per_second", description="samples_per_second"
    )
    headroom: float = Field(
        default=0.05, ge=0, lt=1, description="share of the memory limit that must stay free"
    )
    interval: float = Field(
        default=0.02,
        gt=0,
        lt=1,
        description="a trial ends when its 95 % confidence half-width is below this share",
    )
    min_steps: Annotated[int, Field(ge=6)] = Field(
        default=6, description="least optimizer steps measured, warm-up apart"
    )
    max_steps: Annotated[int, Field(ge=6)] = Field(
        default=100, description="most optimizer steps of a trial"
    )
    max_seconds: Seconds = Field(default=60.0, description="most seconds of steps of a trial")

    @model_validator(mode="after")
    def _steps_in_order(self) -> Self:
        if self.max_steps < self.min_steps:
            raise ValueError(
                f"max_steps is {self.max_steps}, must be min_steps ({self.min_steps}) or more"
            )
        return self


class BudgetSpec(Section):
    """When to stop, whichever comes first."""

    trials: Count = Field(default=40, description="trials, those that fail included")
    minutes: float = Field(default=120.0, gt=0, description="wall-clock of the whole sweep")
    patience: Count | None = Field(
        default=None, description="trials in a row without a better plan; nothing: no such limit"
    )
    trial_seconds: Seconds = Field(
        default=600.0, description="deadline of one trial; past it its workers are replaced"
    )


class StudySpec(Section):
    """Where the records are kept. The same name and storage go on where a sweep stopped."""

    name: str | None = Field(
        default=None,
        min_length=1,
        max_length=128,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$",
        description="letters, digits, '.', '_' and '-'; nothing: the specification's file name",
    )
    folder: str = Field(
        default="plimsoll-runs", description="where the studies of this project are kept"
    )
    storage: str | None = Field(
        default=None,
        description="an Optuna storage URL (sqlite:///..., postgresql://...);"
        " nothing: SQLite in the study's folder",
    )
    sampler: Sampler = Field(default="tpe", description="who proposes plans: tpe, gp or random")
    seed: Seed = Field(default=0, description="of the sampler")


class TrackingSpec(Section):
    """MLflow, derived from the study."""

    enabled: bool = Field(default=True, description="log the sweep to MLflow")
    uri: str | None = Field(
        default=None, description="MLflow tracking URI; nothing: SQLite in study.folder"
    )
    experiment: str | None = Field(
        default=None, min_length=1, description="MLflow experiment; nothing: the study's name"
    )


class SweepSpec(Section):
    """A whole sweep. Only `model` and `train.global_batch` have no default."""

    model: ModelSpec
    data: DataSpec = DataSpec()
    cluster: ClusterSpec = ClusterSpec()
    train: TrainSpec
    space: SpaceSpec = SpaceSpec()
    objective: ObjectiveSpec = ObjectiveSpec()
    budget: BudgetSpec = BudgetSpec()
    study: StudySpec = StudySpec()
    tracking: TrackingSpec = TrackingSpec()

    @model_validator(mode="before")
    @classmethod
    def _model_by_name(cls, value: Any) -> Any:
        """`model: gpt2` means `model: {name: gpt2}`."""
        if isinstance(value, dict) and isinstance(value.get("model"), str):
            return {**value, "model": {"name": value["model"]}}
        return value

    @property
    def memory_limit_bytes(self) -> int | None:
        """Bytes that one rank may use; None: all there is."""
        gib = self.cluster.memory_gib
        return None if gib is None else math.floor(gib * GIB)
