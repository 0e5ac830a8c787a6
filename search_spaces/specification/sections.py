"""Sections of a specification: cluster, objective, validation and training."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import chain
from typing import Annotated, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    field_validator,
    model_validator,
)
from pydantic.fields import FieldInfo

from search_spaces.plan import Precision
from search_spaces.safety.files import expanded

Count = Annotated[int, Field(ge=1, le=1_000_000_000)]
MOST_GIB = 1_000_000.0  # more than any machine has
Seed = Annotated[int, Field(ge=0, le=2**32 - 1)]  # the largest that NumPy takes
Seconds = Annotated[float, Field(gt=0)]
UserPath = Annotated[str, AfterValidator(expanded)]
Beta = Annotated[float, Field(ge=0, lt=1)]
Device = Literal["auto", "cpu", "cuda"]
# Keys of `cluster` that no measurement depends on: where it is, and how a sweep uses it
KEYS_OUTSIDE_MEASUREMENT = frozenset(
    {"address", "gpu", "gpus_per_node", "groups", "price_per_gpu_hour"}
)
Metric = Literal["samples_per_second", "samples_per_price", "headroom"]
LearningRate = Literal["constant", "linear", "cosine"]
Decay = Literal["all", "stock"]
Base = Literal["fp32", "bf16", "int8", "nf4"]
QUANTIZED: tuple[Base, ...] = ("int8", "nf4")  # by bitsandbytes


class SpecSection(BaseModel):
    """A section of the specification: frozen, and without unknown keys."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, protected_namespaces=()
    )


def section_of(field: FieldInfo | None) -> type[SpecSection] | None:
    """Returns the section under a key; None if the key holds a value."""
    kind = field.annotation if field else None
    return kind if isinstance(kind, type) and issubclass(kind, SpecSection) else None


class ClusterSpec(SpecSection):
    """The Ray cluster, how many ranks it runs, and how much memory each rank may use."""

    address: str | None = Field(
        default=None,
        description="Ray cluster to join (host:port, or auto); if unset, the one that this job"
        " runs in, else a new local one",
    )
    device: Device = Field(default="auto", description="auto uses CUDA if the cluster has it")
    workers: Count | Literal["auto"] = Field(
        default="auto",
        description="ranks per plan, one per GPU or CPU slot; auto uses all slots",
    )
    groups: Count | Literal["auto"] = Field(
        default="auto",
        description="trials at the same time, each in its own worker group; auto: one, but if"
        " workers is a number, as many as get nodes of their own and fit in the head node's memory"
        " (the sweep waits for one)",
    )
    share_nodes: bool = Field(
        default=False,
        description="let concurrent trials share nodes and disturb each other's measurements",
    )
    wait_minutes: float = Field(
        default=5.0,
        ge=0,
        allow_inf_nan=False,
        description="how long to wait for nodes of an existing cluster, lost or still to be added"
        " by an autoscaler",
    )
    start_minutes: float = Field(
        default=5.0,
        gt=0,
        allow_inf_nan=False,
        description="how long workers may take to start and load, once their nodes are up, before"
        " they are replaced, once per trial; with engine deepspeed 20 more, to compile its"
        " operators",
    )
    gpu: str | None = Field(
        default=None,
        min_length=1,
        max_length=100,
        description="GPU that `plimsoll plan` forecasts for, such as H100 or A100-40; if unset,"
        " the one in this machine",
    )
    gpus_per_node: Count | None = Field(
        default=None,
        description="GPUs per node (joined by fast links), for `plimsoll plan`; if unset, as usual"
        " for the GPU",
    )
    price_per_gpu_hour: float | None = Field(
        default=None,
        ge=0,
        description="price per GPU-hour (on CPU: per rank-hour), in any currency,"
        " for `plimsoll plan` and objective.metric samples_per_price",
    )
    accelerator: str | None = Field(
        default=None,
        min_length=1,
        max_length=100,
        description="kind of nodes to use, by Ray's label ray.io/accelerator-type; if unset, the"
        " kind with room for most ranks",
    )
    cpus_per_worker: Count = Field(default=1, description="CPU cores and threads per rank")
    memory_gib: float | None = Field(
        default=None,
        gt=0,
        le=MOST_GIB,
        description="memory limit per rank: of the device on CUDA, above the idle worker on CPU;"
        " never more than the device has; if unset, all of it",
    )
    host_memory_gib: float | None = Field(
        default=None,
        gt=0,
        le=MOST_GIB,
        description="memory of a node's host, which offload uses; if unset, that of the sweep's"
        " nodes, and for `plimsoll plan` of a usual server with the GPU",
    )
    nvme_folder: UserPath | None = Field(
        default=None,
        min_length=1,
        description="folder on each node's NVMe drive, for offloaded state",
    )

    def ranks_of(self, slots: int) -> int:
        """Returns the ranks per plan on a cluster with `slots` slots."""
        groups = 1 if self.groups == "auto" else self.groups
        return max(slots // groups, 1) if self.workers == "auto" else self.workers


class AtLeastSpec(SpecSection):
    """Minimum requirements for the best plan, in addition to the headroom."""

    samples_per_second: float | None = Field(
        default=None, gt=0, description="minimum speed of all ranks together; if unset, no minimum"
    )
    samples_per_price: float | None = Field(
        default=None,
        gt=0,
        description="minimum samples per unit of currency (see cluster.price_per_gpu_hour);"
        " if unset, no minimum",
    )


class ObjectiveSpec(SpecSection):
    """The quantity to optimize, and how precisely to measure it."""

    metric: Metric = Field(
        default="samples_per_second",
        description="samples_per_second, samples_per_price (samples per unit of currency, see"
        " cluster.price_per_gpu_hour) or headroom (as much free memory as possible)",
    )
    headroom: float = Field(
        default=0.05, ge=0, lt=1, description="share of the memory limit to keep free"
    )
    prefer: Literal["speed", "headroom"] = Field(
        default="speed",
        description="which of equally fast plans is best: the one with the highest lower end of"
        " its interval, or the one that leaves most memory free",
    )
    at_least: AtLeastSpec = Field(
        default=AtLeastSpec(), description="minimum requirements for the best plan"
    )
    interval: float = Field(
        default=0.02,
        gt=0,
        lt=1,
        description="a trial ends when half of the 95 % confidence interval of its mean step is"
        " below this share, and both halves of its steps agree within half of it",
    )
    min_steps: Annotated[int, Field(ge=6)] = Field(
        default=12,
        description="minimum optimizer steps to measure after warm-up, or max_steps if that is"
        " less; short steps are timed several at once and count as one",
    )
    max_steps: Annotated[int, Field(ge=6)] = Field(
        default=100, description="maximum optimizer steps per trial"
    )
    racing: bool = Field(
        default=True,
        description="end a trial as soon as it is clearly slower than the incumbent; no effect if"
        " metric is headroom",
    )
    max_seconds: Seconds = Field(
        default=60.0, description="maximum seconds of optimizer steps per trial"
    )

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

    enabled: bool = Field(
        default=True,
        description="validate the best plan (`plimsoll tune --no-validation` skips it): longer, in"
        " fresh workers, the longest samples first, with an evaluation pass, a checkpoint, and"
        " losses compared with another plan's",
    )
    tries: Count = Field(
        default=3,
        description="plans to validate at most, one after the other until one passes",
    )
    repeats: Annotated[int, Field(ge=0, le=100)] = Field(
        default=10,
        description="trials at most that measure the leading plans and the baseline again before"
        " the validation, until the leader is clear; 0 takes the fastest trial as it is",
    )
    longer: Annotated[float, Field(ge=1, le=1000)] = Field(
        default=3.0,
        description="limit on steps and seconds of a validation, as a multiple of a trial's; it"
        " measures to half of objective.interval, for at least 10 seconds of steps or a third of"
        " its maximum if that is less",
    )
    folder: UserPath | None = Field(
        default=None,
        min_length=1,
        description="where each rank writes its part of the checkpoint, and removes it; if unset,"
        " study.folder if the rank's machine has it, else the system's temporary folder",
    )


class LoraSpec(SpecSection):
    """Low-rank adapters, which `train.method: lora` trains instead of the weights."""

    rank: Count = Field(default=8, description="rank of the adapters")
    alpha: float = Field(
        default=16.0, gt=0, description="numerator of the adapters' scale, alpha / rank"
    )
    target_modules: tuple[str, ...] | Literal["all-linear"] = Field(
        default="all-linear",
        description="names of linear layers and embeddings that get an adapter; all-linear: every"
        " linear layer of the blocks",
    )
    modules_to_save: tuple[str, ...] = Field(
        default=(),
        description="ends of the names of modules to train in full, in fp32; as in peft, a frozen"
        " copy of each stays",
    )
    base: Base | None = Field(
        default=None,
        description="how frozen weights are held; int8 and nf4 by bitsandbytes, in linear layers"
        " of the blocks, with bf16 elsewhere; if unset, as the folder is quantized, else bf16, but"
        " fp32 with precision fp32",
    )


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

    global_batch: Count = Field(description="samples per optimizer step, over all ranks")
    sequence_length: Count = Field(default=1024, description="longest sample, in tokens")
    optimizer: str = Field(
        default="adamw",
        description="adamw, sgd, adafactor, lion, muon (for matrices in numbered blocks, adamw for"
        " the rest) or module:function, which takes the module and returns an optimizer with its"
        " own groups and rates",
    )
    momentum: float | None = Field(
        default=None,
        ge=0,
        lt=1,
        description="momentum of sgd or muon; if unset, torch's: 0 and 0.95",
    )
    betas: tuple[Beta, Beta] | None = Field(
        default=None,
        description="decay rates of the moments of adamw, lion or muon's adamw; if unset, (0.9,"
        " 0.999), for lion (0.9, 0.99)",
    )
    eps: float | None = Field(
        default=None,
        gt=0,
        description="term of adamw's denominator, muon's adamw too; if unset, 1e-8",
    )
    micro_batch: Count | None = Field(
        default=None,
        description="samples of a forward pass in your own training, if its loss depends on them"
        " (BatchNorm, contrastive losses, balance losses of experts): other numbers are then"
        " lossy, searched only where space.micro_batch names them",
    )
    learning_rate: float = Field(default=1e-4, gt=0, description="peak learning rate")
    schedule: LearningRate = Field(
        default="constant",
        description="learning rate after its warm-up: constant, linear or cosine",
    )
    warmup_steps: Annotated[int, Field(ge=0)] = Field(
        default=0, description="optimizer steps over which the learning rate rises from 0"
    )
    total_steps: Count = Field(
        default=1000,
        description="optimizer steps of the run, over which linear and cosine decay to 0",
    )
    grad_clip: float | None = Field(
        default=None,
        gt=0,
        description="maximum norm of the gradient over all weights; if unset, no clipping",
    )
    weight_decay: float = Field(
        default=0.0,
        ge=0,
        description="weight decay of the optimizer, on the weights of train.decay",
    )
    decay: Decay = Field(
        default="all",
        description="weights that decay: all, or stock, which leaves out biases and norms as"
        " transformers' Trainer does",
    )
    precision: Precision = Field(
        default="bf16",
        description="bf16 and fp16 compute in 16 bits with fp32 master weights (fp16 with dynamic"
        " loss scaling), fp32 in full precision",
    )
    method: Literal["full", "lora"] = Field(
        default="full", description="full trains all weights, lora trains adapters on frozen ones"
    )
    lora: LoraSpec = Field(default=LoraSpec(), description="adapters for method lora")
    seed: Seed = Field(default=0, description="random seed for weights and data order")

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
