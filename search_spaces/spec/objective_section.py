"""What the user asks of the answer: which plan is best, which will do, how exactly it is known."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from search_spaces.spec.section import Seconds, Section

Metric = Literal["samples_per_second", "samples_per_price", "headroom"]


class AtLeastSpec(Section):
    """What a plan must reach to be an answer, beside the head-room."""

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
