"""What all sections of a specification have in common."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from pydantic.fields import FieldInfo

from search_spaces.plan import Precision

Count = Annotated[int, Field(ge=1, le=1_000_000_000)]
Seed = Annotated[int, Field(ge=0, le=2**32 - 1)]  # NumPy takes no larger one
Seconds = Annotated[float, Field(gt=0)]
Device = Literal["auto", "cpu", "cuda"]
# Keys of `cluster` that a measurement does not depend on: where it is, and how a sweep uses it
ASIDE = frozenset({"address", "gpu", "gpus_per_node", "groups", "price_per_gpu_hour"})
Metric = Literal["samples_per_second", "samples_per_price", "headroom"]
LearningRate = Literal["constant", "linear", "cosine"]


class Section(BaseModel):
    """A section of the specification: frozen, and with no key that is not known."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, protected_namespaces=()
    )


def section_of(field: FieldInfo | None) -> type[Section] | None:
    """The section that stands under a key, None if it holds a value."""
    kind = field.annotation if field else None
    return kind if isinstance(kind, type) and issubclass(kind, Section) else None


def sections_in(field: FieldInfo) -> type[Section] | None:
    """The section that stands under each name of a mapping, None if a key holds no such mapping."""
    kinds = get_args(field.annotation) if get_origin(field.annotation) is dict else ()
    return next(
        (kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Section)), None
    )


class AcceleratorSpec(Section):
    """One kind of nodes of a cluster that has several; what is left out is as `cluster` has it."""

    gpu: str | None = Field(
        default=None,
        min_length=1,
        max_length=100,
        description="the GPU for forecasts, such as H100 or A100-40; nothing: what the kind's"
        " name says",
    )
    price_per_gpu_hour: float | None = Field(
        default=None, gt=0, description="price of one of them for an hour"
    )
    memory_gib: float | None = Field(
        default=None, gt=0, description="memory one rank may use there, in GiB"
    )


class ClusterSpec(Section):
    """Where it is trained: which Ray cluster, how many ranks, how much memory each."""

    address: str | None = Field(
        default=None,
        description="Ray cluster to join (host:port, or auto);"
        " nothing: the one this job runs in, else a local one is started",
    )
    device: Device = Field(default="auto", description="auto takes CUDA where the cluster has it")
    workers: Count | Literal["auto"] = Field(
        default="auto",
        description="ranks of a plan, one per GPU or CPU slot; auto takes all there are",
    )
    groups: Count | Literal["auto"] = Field(
        default="auto",
        description="trials that run at the same time, each on workers of its own; auto: where"
        " workers is a number, as many as have nodes to themselves and the head node has memory for"
        " (one is waited for); else one, on each kind of accelerators",
    )
    share_nodes: bool = Field(
        default=False,
        description="let trials that run at the same time share nodes, where they disturb each"
        " other's measurements",
    )
    wait_minutes: float = Field(
        default=5.0,
        ge=0,
        allow_inf_nan=False,
        description="how long to wait for nodes of a cluster that was joined, which an autoscaler"
        " may bring or which were lost",
    )
    start_minutes: float = Field(
        default=5.0,
        gt=0,
        allow_inf_nan=False,
        description="how long workers may take to start and to load what they train, once their"
        " nodes are up; then they are replaced, once for each trial",
    )
    gpu: str | None = Field(
        default=None,
        min_length=1,
        max_length=100,
        description="the GPU that `plimsoll plan` forecasts for, such as H100 or A100-40;"
        " nothing: what this machine has",
    )
    gpus_per_node: Count | None = Field(
        default=None,
        description="GPUs that fast links join, for `plimsoll plan`; nothing: as usual for the GPU",
    )
    price_per_gpu_hour: float | None = Field(
        default=None,
        ge=0,
        description="price of a GPU (on CPU: of a rank) for an hour, in any currency,"
        " for `plimsoll plan` and objective.metric samples_per_price",
    )
    accelerators: dict[str, AcceleratorSpec] = Field(
        default_factory=dict,
        description="kinds of nodes to search among, by what Ray calls their accelerators (the"
        " label ray.io/accelerator-type), each with gpu, price_per_gpu_hour and memory_gib where"
        " they differ; nothing: the kind with room for most ranks is used, others are left alone",
    )
    cpus_per_worker: Count = Field(default=1, description="CPU cores and threads of each rank")
    memory_gib: float | None = Field(
        default=None,
        gt=0,
        description="memory one rank may use, in GiB: on CPU above the bare worker,"
        " on CUDA of the device; nothing: all there is",
    )
    nvme_folder: str | None = Field(
        default=None,
        min_length=1,
        description="a folder on each node's NVMe drive, for what is offloaded to it",
    )

    @property
    def price_on(self) -> dict[str, float]:
        """What a GPU of each kind costs for an hour; nothing if one of them has no price."""
        each = {
            name: told.price_per_gpu_hour or self.price_per_gpu_hour
            for name, told in self.accelerators.items()
        }
        known = {name: price for name, price in each.items() if price}
        return known if len(known) == len(each) else {}

    @property
    def is_priced(self) -> bool:
        """Whether it is known what any rank costs."""
        return bool(self.price_on if self.accelerators else self.price_per_gpu_hour)

    @field_validator("accelerators", mode="before")
    @classmethod
    def _kinds_need_no_words(cls, value: Any) -> Any:
        """`{H100: }` describes nothing, and a list of names neither."""
        if isinstance(value, list | tuple) and all(isinstance(name, str) for name in value):
            return {name: {} for name in value}
        if isinstance(value, dict):
            return {name: {} if told is None else told for name, told in value.items()}
        return value

    def ranks_of(self, slots: int) -> int:
        """Ranks of a plan on a cluster that has room for so many."""
        groups = 1 if self.groups == "auto" else self.groups
        return max(slots // groups, 1) if self.workers == "auto" else self.workers


class AtLeastSpec(Section):
    """What a plan must reach to be an answer, beside the headroom."""

    samples_per_second: float | None = Field(
        default=None, gt=0, description="of all ranks together; nothing: no such limit"
    )
    samples_per_price: float | None = Field(
        default=None,
        gt=0,
        description="samples for a unit of the currency of cluster.price_per_gpu_hour;"
        " nothing: no such limit",
    )


class ObjectiveSpec(Section):
    """What is best, and how exactly it is measured."""

    metric: Metric = Field(
        default="samples_per_second",
        description="samples_per_second, samples_per_price (samples for a unit of the currency of"
        " cluster.price_per_gpu_hour) or headroom (the most memory left free)",
    )
    headroom: float = Field(
        default=0.05, ge=0, lt=1, description="share of the memory limit that must stay free"
    )
    at_least: AtLeastSpec = Field(
        default=AtLeastSpec(), description="what a plan must reach beside that"
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
    racing: bool = Field(
        default=True,
        description="end a trial as soon as it is slower beyond doubt than the best plan so far,"
        " and measure near-ties to half the interval; not where metric is headroom",
    )
    max_seconds: Seconds = Field(default=60.0, description="most seconds of steps of a trial")

    @model_validator(mode="after")
    def _steps_in_order(self) -> Self:
        if self.max_steps < self.min_steps:
            raise ValueError(
                f"max_steps is {self.max_steps}, must be min_steps ({self.min_steps}) or more"
            )
        return self

    @property
    def asks_for_price(self) -> bool:
        """Whether plans are compared or judged by what they cost."""
        return self.metric == "samples_per_price" or self.at_least.samples_per_price is not None


class ValidationSpec(Section):
    """When the search is over, the best plan is run once more, beyond `budget.minutes`."""

    enabled: bool = Field(
        default=True,
        description="validate the best plan (`plimsoll tune --no-validation` does not): in workers"
        " of its own, longer, the longest samples first, with an evaluation pass and a checkpoint;"
        " its losses are compared with another plan's",
    )
    tries: Count = Field(
        default=3,
        description="plans that are validated at most, one after the other until one holds",
    )
    longer: Annotated[float, Field(ge=1, le=1000)] = Field(
        default=3.0,
        description="how many times the steps and seconds of a trial a validation may take,"
        " to half of objective.interval",
    )
    slower: Annotated[float, Field(ge=0, lt=1)] = Field(
        default=0.1,
        description="a validation fails if its speed lies this share below its trial's,"
        " both intervals allowed for",
    )
    folder: str | None = Field(
        default=None,
        min_length=1,
        description="where each rank writes its part of the checkpoint and removes it again;"
        " nothing: study.folder if the rank's machine has it, else the system's temporary folder",
    )


class LoraSpec(Section):
    """Low-rank adapters, which `train.method: lora` trains in place of the weights."""

    rank: Count = Field(default=8, description="of the adapters")
    alpha: float = Field(default=16.0, gt=0, description="scale of the adapters, over the rank")
    target_modules: tuple[str, ...] | Literal["all-linear"] = Field(
        default="all-linear",
        description="names of the modules that get one; all-linear: every linear layer of the"
        " blocks",
    )


class TrainSpec(Section):
    """The training run itself, which a sweep never changes: what is lossless is searched."""

    global_batch: Count = Field(description="samples per optimizer step, all ranks together")
    sequence_length: Count = Field(default=1024, description="longest sample, in tokens")
    optimizer: Literal["adamw"] = Field(default="adamw", description="adamw")
    learning_rate: float = Field(default=1e-4, gt=0, description="of the optimizer, at its peak")
    schedule: LearningRate = Field(
        default="constant",
        description="of the learning rate after its warm-up: constant, linear or cosine",
    )
    warmup_steps: Annotated[int, Field(ge=0)] = Field(
        default=0, description="optimizer steps in which the learning rate rises from 0"
    )
    total_steps: Count = Field(
        default=1000, description="optimizer steps of the run, over which linear and cosine fall"
    )
    grad_clip: float | None = Field(
        default=None,
        gt=0,
        description="longest gradient, as a norm over all weights; nothing: not clipped",
    )
    weight_decay: float = Field(default=0.0, ge=0, description="of the optimizer")
    precision: Precision = Field(
        default="bf16",
        description="bf16 and fp16 compute in 16 bits with fp32 master weights (fp16 with dynamic"
        " loss scaling), fp32 in full precision",
    )
    method: Literal["full", "lora"] = Field(
        default="full", description="full trains all weights, lora adapters beside frozen ones"
    )
    lora: LoraSpec = Field(default=LoraSpec(), description="the adapters of method lora")
    seed: Seed = Field(default=0, description="of the weights and of the data's order")
