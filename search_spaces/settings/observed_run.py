"""Observations of a training run, recorded from inside it: one file of JSON lines per rank."""

from dataclasses import dataclass
from typing import Literal

from pydantic import TypeAdapter

# folder that ranks write to; without it, nothing is recorded
FOLDER_VARIABLE = "PLIMSOLL_RUN_RECORDER"


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedStep:
    """One optimizer step of a rank.

    `loss` is the sum over the step's passes of the values that backward was called on, without
    fp16's scale. Its mean over the ranks that have one is the loss of the optimizer's gradient. It
    is None on ranks without a loss, such as the first stages of a pipeline.
    """

    kind: Literal["step"] = "step"
    at: float  # seconds on the rank's own monotonic clock, after the optimizer's step
    passes: int  # calls of backward
    loss: float | None
    rate: float  # highest learning rate of the optimizer's groups


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedSettings:
    """Training settings of a rank, read from its objects in the second step.

    `wrapped` and `recomputed` are classes of modules with their counts: modules that a wrapper
    shards as a unit, and the outermost modules whose forward ran again in backward.
    """

    kind: Literal["settings"] = "settings"
    rank: int
    ranks: int
    wrapper: Literal["none", "ddp", "fsdp2", "deepspeed"]
    zero_stage: int = 0
    replicas: int = 1
    offload_parameters: str = "none"
    offload_optimizer: str = "none"
    wrapped: tuple[tuple[str, int], ...] = ()
    recomputed: tuple[tuple[str, int], ...]
    compiled: int  # modules
    rows: int | None  # of the first tensor of a forward pass: samples, unless they are packed
    columns: int | None  # of the same tensor: tokens
    compute: str | None  # output dtype of most linear layers: float32, bfloat16, float16
    attention: str | None  # transformers' name of it
    frozen: tuple[str, ...] = ()  # dtypes of frozen weights: bfloat16, uint8
    optimizer: str  # class and implementation: AdamW fused
    decays: tuple[float, ...]  # weight decays of the optimizer's groups, ascending
    rates: tuple[tuple[str, float | tuple[float, ...]], ...]  # momentum, betas, eps of its groups
    clip: float | None = None  # largest norm of the gradient that stays; None without clipping
    loss_weight: float | None  # sum over passes of what backward was called on, over the loss


Observed = ObservedStep | ObservedSettings
OBSERVED: TypeAdapter[Observed] = TypeAdapter(Observed)


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedFailure:
    """An uncaught exception of a process."""

    at: float  # seconds since the epoch
    rank: int
    error: str  # class and message, in one line
    where: str  # line that raised it, or empty


FAILURE: TypeAdapter[ObservedFailure] = TypeAdapter(ObservedFailure)
