"""Sections of a specification: cluster, objective, validation and training."""

import re
from collections.abc import Mapping
from itertools import chain
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator
from pydantic.fields import FieldInfo

from search_spaces.plan import Precision
from search_spaces.safety.files import expanded, packaged_table

Count = Annotated[int, Field(ge=1, le=1_000_000_000)]
MOST_GIB = 1_000_000.0  # more than any machine has
Seed = Annotated[int, Field(ge=0, le=2**32 - 1)]  # the largest that NumPy takes
Seconds = Annotated[float, Field(gt=0)]
UserPath = Annotated[str, AfterValidator(expanded)]
Beta = Annotated[float, Field(ge=0, lt=1)]
Device = Literal["auto", "cpu", "cuda", "tpu"]
# Keys of `cluster` that no measurement depends on: where it is, and how a sweep uses it
KEYS_OUTSIDE_MEASUREMENT = frozenset(
    {"address", "gpu", "gpus_per_node", "groups", "price_per_gpu_hour"}
)
Metric = Literal["samples_per_second", "samples_per_price", "tokens_per_joule", "headroom"]
SPEED_METRICS: tuple[Metric, ...] = ("samples_per_second", "samples_per_price")  # those of speed
LearningRate = Literal["constant", "linear", "cosine"]
Decay = Literal["all", "stock"]
Base = Literal["fp32", "bf16", "int8", "nf4"]
QUANTIZED: tuple[Base, ...] = ("int8", "nf4")  # by bitsandbytes


class SpecSection(BaseModel):
    """A section of the specification: frozen, and without unknown keys.

    descriptions.yaml says what each key means.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        protected_namespaces=(),
        defer_build=True,  # until keys have their descriptions
    )

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        table = packaged_table(__package__, "descriptions.yaml")
        for key, description in table.get(cls.__name__, {}).items():
            cls.model_fields[key].description = description


def section_of(field: FieldInfo | None) -> type[SpecSection] | None:
    """Returns the section under a key; None if the key holds a value."""
    kind = field.annotation if field else None
    return kind if isinstance(kind, type) and issubclass(kind, SpecSection) else None


class ClusterSpec(SpecSection):
    """The Ray cluster, how many ranks it runs, and how much memory each rank may use."""

    address: str | None = None
    device: Device = "auto"
    workers: Count | Literal["auto"] = "auto"
    groups: Count | Literal["auto"] = "auto"
    share_nodes: bool = False
    wait_minutes: float = Field(default=5.0, ge=0, allow_inf_nan=False)
    start_minutes: float = Field(default=5.0, gt=0, allow_inf_nan=False)
    gpu: str | None = Field(default=None, min_length=1, max_length=100)
    gpus_per_node: Count | None = None
    price_per_gpu_hour: float | None = Field(default=None, ge=0)
    accelerator: str | None = Field(default=None, min_length=1, max_length=100)
    cpus_per_worker: Count = 1
    memory_gib: float | None = Field(default=None, gt=0, le=MOST_GIB)
    host_memory_gib: float | None = Field(default=None, gt=0, le=MOST_GIB)
    nvme_folder: UserPath | None = Field(default=None, min_length=1)

    def ranks_of(self, slots: int) -> int:
        """Returns the ranks per plan on a cluster with `slots` slots."""
        groups = 1 if self.groups == "auto" else self.groups
        return max(slots // groups, 1) if self.workers == "auto" else self.workers


class AtLeastSpec(SpecSection):
    """Minimum requirements for the best plan, in addition to the headroom."""

    samples_per_second: float | None = Field(default=None, gt=0)
    samples_per_price: float | None = Field(default=None, gt=0)


class ObjectiveSpec(SpecSection):
    """The quantity to optimize, and how precisely to measure it."""

    metric: Metric | Literal["sequence_length"] = "samples_per_second"
    headroom: float = Field(default=0.05, ge=0, lt=1)
    memory_gib: float | None = Field(default=None, gt=0, le=MOST_GIB)
    prefer: Literal["speed", "headroom"] = "speed"
    at_least: AtLeastSpec = AtLeastSpec()
    interval: float = Field(default=0.02, gt=0, lt=1)
    min_steps: Annotated[int, Field(ge=6)] = 12
    max_steps: Annotated[int, Field(ge=6)] = 100
    racing: bool = True
    max_seconds: Seconds = 60.0

    @model_validator(mode="after")
    def _steps_in_order(self) -> Self:
        if "min_steps" not in self.model_fields_set:
            # a specification that only names a small maximum is legal
            object.__setattr__(self, "min_steps", min(self.min_steps, self.max_steps))
        if self.max_steps < self.min_steps:
            raise ValueError(
                f"max_steps is {self.max_steps}, must be min_steps ({self.min_steps}) or more"
            )
        return self

    @property
    def asks_for_price(self) -> bool:
        """True if plans are ranked or filtered by price."""
        return self.metric == "samples_per_price" or self.at_least.samples_per_price is not None


class ValidationSpec(SpecSection):
    """A longer rerun of the best plan after the search; not counted in `budget.minutes`."""

    enabled: bool = True
    tries: Count = 3
    repeats: Annotated[int, Field(ge=0, le=100)] = 40
    longer: Annotated[float, Field(ge=1, le=1000)] = 3.0
    folder: UserPath | None = Field(default=None, min_length=1)


class LoraSpec(SpecSection):
    """Low-rank adapters, which `train.method: lora` trains instead of the weights."""

    rank: Count = 8
    alpha: float = Field(default=16.0, gt=0)
    target_modules: tuple[str, ...] | Literal["all-linear"] = "all-linear"
    modules_to_save: tuple[str, ...] = ()
    base: Base | None = None


_RATES = ("learning_rate", "weight_decay", "decay")
OPTIMIZER_KEYS: Mapping[str, tuple[str, ...]] = {
    "adamw": (*_RATES, "betas", "eps"),
    "sgd": (*_RATES, "momentum"),
    "adafactor": _RATES,
    "lion": (*_RATES, "betas"),
    "muon": (*_RATES, "momentum", "betas", "eps"),
}


class TrainSpec(SpecSection):
    """The training run itself, which a sweep leaves as it is: only lossless knobs are searched."""

    global_batch: Count
    sequence_length: Count = 1024
    optimizer: str = "adamw"
    momentum: float | None = Field(default=None, ge=0, lt=1)
    betas: tuple[Beta, Beta] | None = None
    eps: float | None = Field(default=None, gt=0)
    micro_batch: Count | None = None
    learning_rate: float = Field(default=1e-4, gt=0)
    schedule: LearningRate = "constant"
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    total_steps: Count = 1000
    grad_clip: float | None = Field(default=None, gt=0)
    weight_decay: float = Field(default=0.0, ge=0)
    decay: Decay = "all"
    precision: Precision = "bf16"
    method: Literal["full", "lora"] = "full"
    lora: LoraSpec = LoraSpec()
    seed: Seed = 0

    @field_validator("optimizer")
    @classmethod
    def _optimizer_exists(cls, value: str) -> str:
        if value not in OPTIMIZER_KEYS and not re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", value):
            raise ValueError(
                f"there is no optimizer {value!r}: {', '.join(OPTIMIZER_KEYS)} or module:function"
            )
        return value

    @model_validator(mode="after")
    def _optimizer_has_the_keys(self) -> Self:
        keys = OPTIMIZER_KEYS.get(self.optimizer, ())
        for name in dict.fromkeys(chain(*OPTIMIZER_KEYS.values())):
            if name not in keys and getattr(self, name) != type(self).model_fields[name].default:
                has = f"its keys are {', '.join(keys)}" if keys else "the function sets its rates"
                raise ValueError(f"optimizer {self.optimizer} has no {name}: {has}")
        return self
