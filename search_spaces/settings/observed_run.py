"""What a witness in a training process saw of it, as one rank's file of JSON lines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pydantic import TypeAdapter

FOLDER_VARIABLE = "PLIMSOLL_WITNESS"  # where the ranks of a run write; without it, nobody looks


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedStep:
    """One optimizer step of a rank.

    `loss` is what backward was called on, summed over the step's passes, without fp16's scale:
    its mean over the ranks that have one is the loss whose gradient the optimizer got. None where
    the rank has none, as the first stages of a pipeline.
    """

    kind: Literal["step"] = "step"
    at: float  # seconds on the rank's own monotonic clock, when the optimizer had stepped
    passes: int  # calls of backward
    loss: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedSettings:
    """What the living objects of a rank said of how it trains, in its second step.

    `wrapped` and `recomputed` are classes of modules with how many there are: those that a
    wrapper shards by itself, and the outermost whose forward ran again in backward.
    """

    kind: Literal["settings"] = "settings"
    rank: int
    ranks: int
    wrapper: Literal["none", "ddp", "fsdp2", "deepspeed"]
    zero_stage: int
    replicas: int
    offload_parameters: str
    offload_optimizer: str
    wrapped: tuple[tuple[str, int], ...]
    recomputed: tuple[tuple[str, int], ...]
    compiled: int  # modules
    rows: int | None  # of the first tensor of a forward pass: samples, if none are packed
    compute: str | None  # dtype that most linear layers gave: float32, bfloat16, float16
    attention: str | None  # as transformers has it
    optimizer: str  # its class, with its way of looping: AdamW fused


Observed = ObservedStep | ObservedSettings
OBSERVED: TypeAdapter[Observed] = TypeAdapter(Observed)


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedFailure:
    """An exception that a process did not catch; `where` is the line that raised it, or empty."""

    at: float  # seconds since the epoch
    rank: int
    error: str  # its class and message, in one line
    where: str


FAILURE: TypeAdapter[ObservedFailure] = TypeAdapter(ObservedFailure)
