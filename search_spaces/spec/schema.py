"""What the user asks: the sections of a sweep specification.

Each field's description is its documentation: `plimsoll init` and the spec reference print it.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from search_spaces.spec.sections import (
    ClusterSpec,
    Count,
    ObjectiveSpec,
    Seconds,
    Section,
    Seed,
    TrainSpec,
    ValidationSpec,
)
from search_spaces.spec.space_section import SpaceSpec

Task = Literal["causal-lm", "masked-lm", "sequence-classification", "seq2seq"]
Sampler = Literal["plimsoll", "tpe", "gp", "random"]

GIB = 2**30


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
    tensor_plan: dict[str, str] = Field(
        default_factory=dict,
        description="how tensor parallelism splits modules, by name (* is one part of it):"
        " colwise, rowwise, ...; nothing: the architecture's own plan",
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


class BudgetSpec(Section):
    """When to stop, whichever comes first."""

    trials: Count = Field(default=40, description="trials, those that fail included")
    minutes: float = Field(default=120.0, gt=0, description="wall-clock of the whole sweep")
    gpu_hours: float | None = Field(
        default=None,
        gt=0,
        description="hours of all ranks' trials together; nothing: no such limit",
    )
    training_hours: float | None = Field(
        default=None,
        gt=0,
        description="how long the training takes that the answer is for, in hours: the sweep ends"
        " when its best next trial is expected to save less than it takes; nothing: no such end",
    )
    patience: Count | None = Field(
        default=None, description="trials in a row without a better plan; nothing: no such limit"
    )
    trial_seconds: Seconds = Field(
        default=600.0,
        description="latest deadline of one trial; past its deadline its workers are replaced."
        " Once a trial of the same engine was measured, a forecast sets an earlier one:"
        " objective.max_seconds, a minute, and four times what building and three of its slowest"
        " steps are expected to take",
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
        description="an Optuna storage URL (sqlite:///..., postgresql://...); nothing: what the"
        " environment variable PLIMSOLL_STUDY_STORAGE names, else SQLite in the study's folder."
        " Copies of a specification are kept without the password in it",
    )
    wait_minutes: float = Field(
        default=10.0,
        ge=0,
        le=1440,
        description="how long a sweep waits for a storage that goes away in the middle of it",
    )
    sampler: Sampler = Field(
        default="plimsoll",
        description="who proposes plans: plimsoll, or Optuna's tpe, gp or random",
    )
    seed: Seed = Field(default=0, description="of the sampler")
    warm_start: bool = Field(
        default=True,
        description="learn from other studies in the same folder or storage, where they measured"
        " the same model, data and training on the same device; less, where software differs",
    )


class TrackingSpec(Section):
    """MLflow, derived from the study."""

    enabled: bool = Field(default=True, description="log the sweep to MLflow")
    uri: str | None = Field(
        default=None,
        description="MLflow tracking URI; nothing: what the environment variable"
        " MLFLOW_TRACKING_URI names, else SQLite in study.folder",
    )
    experiment: str | None = Field(
        default=None,
        min_length=1,
        description="MLflow experiment; nothing: what the environment variable"
        " MLFLOW_EXPERIMENT_NAME names, else the study's name",
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
    validation: ValidationSpec = ValidationSpec()
    study: StudySpec = StudySpec()
    tracking: TrackingSpec = TrackingSpec()

    @model_validator(mode="before")
    @classmethod
    def _model_by_name(cls, value: Any) -> Any:
        """`model: gpt2` means `model: {name: gpt2}`."""
        if isinstance(value, dict) and isinstance(value.get("model"), str):
            return {**value, "model": {"name": value["model"]}}
        return value

    @field_validator("space")
    @classmethod
    def _accelerators_are_told(cls, value: SpaceSpec, info: ValidationInfo) -> SpaceSpec:
        cluster = info.data.get("cluster")
        known = cluster.accelerators if cluster is not None else value.accelerator or ()
        if unknown := [name for name in value.accelerator or () if name not in known]:
            raise ValueError(
                f"accelerator names {', '.join(unknown)}, and cluster.accelerators does not: add"
                " there what Ray calls the nodes' accelerators"
            )
        return value

    @field_validator("objective")
    @classmethod
    def _price_is_known(cls, value: ObjectiveSpec, info: ValidationInfo) -> ObjectiveSpec:
        cluster = info.data.get("cluster")
        if value.asks_for_price and cluster is not None and not cluster.is_priced:
            raise ValueError(
                "samples_per_price needs a price: give cluster.price_per_gpu_hour, above 0"
                + (", or one for each of cluster.accelerators" if cluster.accelerators else "")
            )
        return value

    @field_validator("budget")
    @classmethod
    def _worth_is_time(cls, value: BudgetSpec, info: ValidationInfo) -> BudgetSpec:
        objective = info.data.get("objective")
        if value.training_hours and objective is not None and objective.metric == "headroom":
            raise ValueError(
                "training_hours weighs a trial by the time that it saves, and objective.metric"
                " headroom saves none: leave it out"
            )
        return value

    @property
    def memory_limit_bytes(self) -> int | None:
        """Bytes that one rank may use; None: all there is."""
        gib = self.cluster.memory_gib
        return None if gib is None else math.floor(gib * GIB)

    @property
    def for_workers(self) -> Self:
        """What workers are given: no addresses of databases and servers, which may hold passwords.

        Workers ask neither; what they are given passes through the memory of a cluster.
        """
        study = self.study.model_copy(update={"storage": None})
        tracking = self.tracking.model_copy(update={"uri": None})
        return self.model_copy(update={"study": study, "tracking": tracking})

    def on(self, accelerator: str) -> Self:
        """The specification as it is for nodes of one kind: with their memory limit and price."""
        told = self.cluster.accelerators.get(accelerator)
        if told is None:
            return self
        named = told.model_dump(exclude_none=True)
        return self.model_copy(update={"cluster": self.cluster.model_copy(update=named)})
