"""Schema of a sweep specification.

descriptions.yaml documents each field: `plimsoll init` and `docs/spec.md` print it.
"""

import math
from itertools import starmap
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from search_spaces.plan import knob_problem
from search_spaces.specification.sections import (
    SPEED_METRICS,
    ClusterSpec,
    Count,
    ObjectiveSpec,
    Seconds,
    Seed,
    SpecSection,
    TrainSpec,
    UserPath,
    ValidationSpec,
)
from search_spaces.specification.space_section import SpaceSpec

TextTask = Literal["causal-lm", "masked-lm", "seq2seq", "sequence-classification"]
Task = Literal[  # of all but the first four, batches are random values of a model's shapes
    TextTask,
    "image-classification",
    "audio-classification",
    "ctc",
    "speech-seq2seq",
    "image-text-to-text",
    "zero-shot-image-classification",
]
Sampler = Literal["plimsoll", "tpe", "gp", "random"]
_Scripts = Literal["torchrun", "deepspeed", "accelerate", "hf-trainer"]
_Jobs = Literal["ray-train", "rayjob", "slurm", "sky", "trainjob"]
TrainerFile = Literal[
    "axolotl", "llama-factory", "trl", "ms-swift", "verl", "torchtitan", "megatron-bridge"
]
TrainerName = Literal["own", _Scripts, _Jobs, TrainerFile]

GIB = 2**30
PICKLE = ".pickle"  # suffix of a model that a Python program gave


class ModelSpec(SpecSection):
    """The model to train. Its weights are initialised, never downloaded."""

    name: UserPath = Field(min_length=1)
    task: Task | None = None
    config: dict[str, Any] = Field(default_factory=dict)
    revision: str | None = Field(default=None, pattern=r"^[\w][\w./-]*$", max_length=200)
    trust_remote_code: bool = False
    tensor_plan: dict[str, str] = Field(default_factory=dict)

    @property
    def pickle(self) -> str:
        """The file of a model that a Python program gave; empty for others."""
        return file if (file := self.name.rpartition(":")[0]).endswith(PICKLE) else ""

    @property
    def title(self) -> str:
        """The name without such a file."""
        return self.name.removeprefix(f"{self.pickle}:") if self.pickle else self.name


class DataSpec(SpecSection):
    """The training data. Without files or lengths, each sample fills the sequence length."""

    files: tuple[UserPath, ...] = ()
    field: str | Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    split: Literal["paragraph", "line", "file"] | None = None
    tokenizer: UserPath | None = None
    lengths: dict[Count, Annotated[float, Field(gt=0)]] = Field(default_factory=dict)

    @field_validator("files", mode="before")
    @classmethod
    def _one_file(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if self.files and self.lengths:
            raise ValueError("give files or lengths, not both")
        return self

    @property
    def kind(self) -> Literal["text", "lengths", "fixed"]:
        """The source of the samples."""
        if self.files:
            return "text"
        return "lengths" if self.lengths else "fixed"


class BudgetSpec(SpecSection):
    """Limits of the sweep, which stops at the first one that it reaches."""

    trials: Count = 40
    minutes: float = Field(default=120.0, gt=0)
    gpu_hours: float | None = Field(default=None, gt=0)
    training_hours: float | None = Field(default=None, gt=0)
    patience: Count | None = None
    trial_seconds: Seconds = 600.0


class StudySpec(SpecSection):
    """Storage of the records. A sweep with the same name and storage resumes."""

    name: str | None = Field(
        default=None, min_length=1, max_length=128, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
    )
    folder: UserPath = "plimsoll-runs"
    storage: str | None = None
    wait_minutes: float = Field(default=10.0, ge=0, le=1440)
    sampler: Sampler = "plimsoll"
    seed: Seed = 0
    warm_start: bool = True


class TrackingSpec(SpecSection):
    """Logging to MLflow, which is derived from the study."""

    enabled: bool = True
    uri: str | None = None
    experiment: str | None = Field(default=None, min_length=1)


class SweepSpec(SpecSection):
    """A sweep. Only `model` and `train.global_batch` have no default."""

    model: ModelSpec
    data: DataSpec = DataSpec()
    cluster: ClusterSpec = ClusterSpec()
    train: TrainSpec
    space: SpaceSpec = SpaceSpec()
    baseline: dict[str, Any] = Field(default_factory=dict)
    trainer: TrainerName = "own"
    objective: ObjectiveSpec = ObjectiveSpec()
    budget: BudgetSpec = BudgetSpec()
    validation: ValidationSpec = ValidationSpec()
    study: StudySpec = StudySpec()
    tracking: TrackingSpec = TrackingSpec()

    @model_validator(mode="before")
    @classmethod
    def _written_out(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {key: written_out(key, section) for key, section in value.items()}

    @field_validator("baseline")
    @classmethod
    def _knobs_exist(cls, value: dict[str, Any]) -> dict[str, Any]:
        if problems := [*filter(None, starmap(knob_problem, value.items()))]:
            raise ValueError("; ".join(problems))
        return value

    @field_validator("objective")
    @classmethod
    def _price_is_known(cls, value: ObjectiveSpec, info: ValidationInfo) -> ObjectiveSpec:
        cluster = info.data.get("cluster")
        if value.asks_for_price and cluster is not None and not cluster.price_per_gpu_hour:
            raise ValueError(
                "samples_per_price needs a price: set cluster.price_per_gpu_hour above 0"
            )
        return value

    @field_validator("budget")
    @classmethod
    def _training_hours_need_speed(cls, value: BudgetSpec, info: ValidationInfo) -> BudgetSpec:
        objective = info.data.get("objective")
        if value.training_hours and objective and objective.metric not in SPEED_METRICS:
            raise ValueError(
                "training_hours weighs a trial by the time it saves, and objective.metric"
                f" {objective.metric} saves none: remove training_hours"
            )
        return value

    @property
    def memory_limit_bytes(self) -> int | None:
        """Memory limit per rank in bytes; None if only the machine limits it."""
        return _bytes(self.cluster.memory_gib)

    @property
    def host_memory_bytes(self) -> int | None:
        """Memory of a node's host in bytes; None if it is not specified."""
        return _bytes(self.cluster.host_memory_gib)

    def named(self, knob: str) -> tuple[Any, ...]:
        """Returns the values that `space` and `baseline` name for a knob; empty if none."""
        today = (self.baseline[knob],) if knob in self.baseline else ()
        return (*(getattr(self.space, knob) or ()), *today)

    @property
    def for_workers(self) -> Self:
        """The specification without addresses of databases and servers, which may hold passwords.

        Workers need neither, and what they get passes through the memory of the cluster.
        """
        study = self.study.model_copy(update={"storage": None})
        tracking = self.tracking.model_copy(update={"uri": None})
        return self.model_copy(update={"study": study, "tracking": tracking})


def _bytes(gib: float | None) -> int | None:
    return None if gib is None else math.floor(gib * GIB)


def written_out(key: str, value: Any) -> Any:
    """Returns the section that a name or files stand for: `model: gpt2`, `data: train.jsonl`."""
    if key == "model" and isinstance(value, str):
        return {"name": value}
    if key == "data" and {str} == {*map(type, value if isinstance(value, list) else [value])}:
        return {"files": value}
    return value
