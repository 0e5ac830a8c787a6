"""The section of a specification that says what training is: never changed by a sweep."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from search_spaces.plan import Precision
from search_spaces.spec.section import Count, Section, Seed

LearningRate = Literal["constant", "linear", "cosine"]


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
