"""Schema of a sweep specification.

Each field's description is its documentation: `plimsoll init` and `docs/spec.md` print it.
"""

from __future__ import annotations

import math
from itertools import starmap
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from search_spaces.plan import knob_problem
from search_spaces.specification.sections import (
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
TrainerName = Literal["own", _Scripts, _Jobs, "axolotl", "llama-factory", "trl", "torchtitan"]

GIB = 2**30
PICKLE = ".pickle"  # suffix of a model that a Python program gave


class ModelSpec(SpecSection):
    """The model to train. Its weights are initialised, never downloaded."""

    name: UserPath = Field(
        min_length=1,
        description="a shipped preset (see `plimsoll models`), a folder with config.json, a Hub id,"
        " or package.module:function returning (module, batch maker)",
    )
    task: Task | None = Field(
        default=None,
        description="if unset, what the class in config.json is for. The first four train on"
        " `data`, the others on random batches of the model's shapes",
    )
    config: dict[str, Any] = Field(
        default_factory=dict,
        description="fields of the model's config to override, such as num_hidden_layers",
    )
    revision: str | None = Field(
        default=None,
        pattern=r"^[\w][\w./-]*$",
        max_length=200,
        description="branch, tag or commit of a Hub id; a study keeps to the commit of its first"
        " sweep",
    )
    trust_remote_code: bool = Field(
        default=False,
        description="run the model code in a folder, or in a Hub repository whose commit is"
        " model.revision",
    )
    tensor_plan: dict[str, str] = Field(
        default_factory=dict,
        description="how tensor parallelism splits modules, by name (* stands for one part of it):"
        " colwise, rowwise, ...; if unset, the architecture's own plan",
    )

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

    files: tuple[UserPath, ...] = Field(
        default=(),
        description="files or folders, read in this order, recognised by content: JSON lines, a"
        " JSON array, CSV, parquet or text, also packed (gz, bz2, xz, zst), or a saved `datasets`"
        " folder",
    )
    field: str | Annotated[tuple[str, ...], Field(min_length=1)] | None = Field(
        default=None,
        description="field of a record with the text, messages or tokens, or a list of fields to"
        " join; if unset, a usual one (text, content, messages, conversations, input_ids) or a"
        " usual set, such as prompt and completion",
    )
    split: Literal["paragraph", "line", "file"] | None = Field(
        default=None,
        description="what is one sample of a text file; if unset, paragraph where blank lines"
        " separate some, else line",
    )
    tokenizer: UserPath | None = Field(
        default=None,
        description="a tokenizer.json, or a folder or Hub id that has one; its chat template"
        " writes messages; if unset, a byte-level BPE is trained on the files",
    )
    lengths: dict[Count, Annotated[float, Field(gt=0)]] = Field(
        default_factory=dict,
        description="instead of files: sample lengths in tokens, each with its frequency",
    )

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

    trials: Count = Field(default=40, description="number of trials, including failed ones")
    minutes: float = Field(
        default=120.0, gt=0, description="wall-clock time of the whole sweep, in minutes"
    )
    gpu_hours: float | None = Field(
        default=None,
        gt=0,
        description="GPU-hours of all trials (on CPU: rank-hours); if unset, no limit",
    )
    training_hours: float | None = Field(
        default=None,
        gt=0,
        description="length in hours of the training run that is tuned: the sweep ends when its"
        " best next trial would cost more time than it is expected to save; if unset, no such end",
    )
    patience: Count | None = Field(
        default=None, description="trials in a row without a better plan; if unset, no limit"
    )
    trial_seconds: Seconds = Field(
        default=600.0,
        description="longest deadline of a trial, after which its workers are replaced. Once a"
        " trial of the same engine was measured, the forecast sets an earlier one:"
        " objective.max_seconds, plus a minute, plus four times the expected time to build the"
        " model and run three of its slowest steps",
    )


class StudySpec(SpecSection):
    """Storage of the records. A sweep with the same name and storage resumes."""

    name: str | None = Field(
        default=None,
        min_length=1,
        max_length=128,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$",
        description="letters, digits, '.', '_' and '-'; if unset, the specification's file name",
    )
    folder: UserPath = Field(
        default="plimsoll-runs", description="folder for the studies of this project"
    )
    storage: str | None = Field(
        default=None,
        description="Optuna storage URL (sqlite:///..., postgresql://...); if unset,"
        " PLIMSOLL_STUDY_STORAGE of the environment, else SQLite in the study's folder. Saved"
        " copies of the specification leave its password out",
    )
    wait_minutes: float = Field(
        default=10.0,
        ge=0,
        le=1440,
        description="how long a sweep waits if its storage becomes unavailable",
    )
    sampler: Sampler = Field(
        default="plimsoll",
        description="proposes the plans: plimsoll, or Optuna's tpe, gp or random",
    )
    seed: Seed = Field(default=0, description="random seed of the sampler")
    warm_start: bool = Field(
        default=True,
        description="learn from studies in the same folder or storage that measured the same"
        " model, data and training on the same device; less if their software differs",
    )


class TrackingSpec(SpecSection):
    """Logging to MLflow, which is derived from the study."""

    enabled: bool = Field(default=True, description="log the sweep to MLflow")
    uri: str | None = Field(
        default=None,
        description="MLflow tracking URI; if unset, MLFLOW_TRACKING_URI of the environment, else"
        " SQLite in study.folder",
    )
    experiment: str | None = Field(
        default=None,
        min_length=1,
        description="MLflow experiment; if unset, MLFLOW_EXPERIMENT_NAME of the environment, else"
        " the study's name",
    )


class SweepSpec(SpecSection):
    """A sweep. Only `model` and `train.global_batch` have no default."""

    model: ModelSpec
    data: DataSpec = DataSpec()
    cluster: ClusterSpec = ClusterSpec()
    train: TrainSpec
    space: SpaceSpec = SpaceSpec()
    baseline: dict[str, Any] = Field(
        default_factory=dict,
        description="the setting of today, one value for each key of space that you know: the"
        " first trial, which speed-ups are relative to. Its values are searched too; if unset, DDP"
        " with micro-batch 1 and nothing recomputed",
    )
    trainer: TrainerName = Field(
        default="own",
        description="what will train by the best plan: own (your loop, which takes every plan), or"
        " a format of `plimsoll export`, whose plans alone are then searched",
    )
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
        if value.training_hours and objective is not None and objective.metric == "headroom":
            raise ValueError(
                "training_hours weighs a trial by the time it saves, and objective.metric headroom"
                " saves none: remove training_hours"
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
