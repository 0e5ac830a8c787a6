"""Settings of the optimizer and its schedule, the same for every engine."""

from dataclasses import dataclass
from typing import Literal

from search_spaces.plan import Optimizer, Plan
from search_spaces.specification.sections import Decay, LearningRate, TrainSpec

Kind = Optimizer | Literal["adamw_cpu", "adamw_stochastic"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerSettings:
    """Arguments of `make_optimizer` (`workers/plain_torch/optimizers.py`)."""

    kind: Kind
    learning_rate: float
    weight_decay: float
    decay: Decay
    momentum: float | None
    betas: tuple[float, float] | None
    eps: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleSettings:
    """Arguments of `make_scheduler` (`workers/plain_torch/update.py`)."""

    shape: LearningRate
    warmup_steps: int
    total_steps: int


def kind_of(plan: Plan) -> Kind:
    """Returns the optimizer of a plan as `workers/plain_torch/optimizers.py` names it."""
    if plan.engine == "deepspeed" and plan.offload_optimizer != "none":
        return "adamw_cpu"
    return "adamw_stochastic" if plan.states == "bf16_stochastic" else plan.optimizer


def render_optimizer(kind: Kind, train: TrainSpec) -> OptimizerSettings:
    """Returns the settings of an optimizer with the rates and the decay of the specification."""
    return OptimizerSettings(
        kind=kind,
        learning_rate=train.learning_rate,
        weight_decay=train.weight_decay,
        decay=train.decay,
        momentum=train.momentum,
        betas=train.betas,
        eps=train.eps,
    )


def render_schedule(train: TrainSpec) -> ScheduleSettings | None:
    """Returns the schedule of the learning rate, None if it is the same in all steps."""
    if train.schedule == "constant" and not train.warmup_steps:
        return None
    return ScheduleSettings(
        shape=train.schedule, warmup_steps=train.warmup_steps, total_steps=train.total_steps
    )
