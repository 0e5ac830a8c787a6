"""Declaration of a knob: all that is known of one dimension of the space, but for its values."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from search_spaces.knobs.search_defaults import Chosen, DomainContext, Values
from search_spaces.plan import DEFAULTS
from search_spaces.settings.schedules import SCHEDULES
from search_spaces.specification.schema import SweepSpec

ZERO = ("engine", "zero_stage")
REPLICATED = (*ZERO, "data")
DDP = (*REPLICATED, "pipeline", "pipeline_schedule")
OFFLOADS = ("offload_optimizer", "offload_parameters")


def always(_: Chosen) -> bool:
    """The condition of a knob that is always active."""
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """One dimension of the space.

    Its type, its default, which it has where it is inactive, and what its values mean are those of
    the field in `Plan`. Words that only docs/knobs.md needs are in descriptions.yaml.

    Attributes:
        name: Name of the field in `Plan`, and of the key in the section `space`.
        default: Returns the values to search if the specification names none. Without it, the
            knob keeps its default (`plan.DEFAULTS`).
        is_active: Returns True if the knob changes anything, given the knobs before it. An
            inactive knob has its default, so that no plan has two names.
        depends_on: Knobs before this one that `default` and `is_active` read; they see no others.
        lossy: Returns True if a value changes the numerics of the specified training.
        memory: 1 if a larger value never takes less memory, -1 if it never takes more, 0 if the
            direction is unknown.
        forecast: False if forecasts do not depend on the knob, so that only trials tell its effect.
        label: Word in tables for a value that is not the default, with {} for the value; empty if
            `orchestrator.report.labels` words it together with other knobs.
    """

    name: str
    default: Callable[[DomainContext], Values] | None = None
    is_active: Callable[[Chosen], bool] = always
    depends_on: tuple[str, ...] = ()
    lossy: Callable[[Any, SweepSpec], bool] = lambda _, __: False
    memory: Literal[-1, 0, 1] = 0
    forecast: bool = True
    label: str = ""

    def values(self, choice: DomainContext) -> Values:
        """Returns the values to search at a point of the space, the baseline's among them.

        The specification's list wins over the knob's own values.
        """
        if not self.is_active(choice.chosen):
            return (DEFAULTS[self.name],)
        usual: Values = ()
        if getattr(choice.spec.space, self.name) is None:
            usual = self.default(choice) if self.default else (DEFAULTS[self.name],)
        return tuple(dict.fromkeys((*usual, *choice.spec.named(self.name))))


def is_sharded(chosen: Chosen) -> bool:
    """Returns True if data ranks shard any state."""
    return bool(chosen["zero_stage"] >= (2 if chosen["engine"] == "torch" else 1))


def has_whole_layers(chosen: Chosen) -> bool:
    """Returns True if each data rank of engine `torch` has all layers, unsplit."""
    return bool(chosen["engine"] == "torch" and chosen["tensor"] == chosen["pipeline"] == 1)


def is_replicated(chosen: Chosen) -> bool:
    """Returns True if data ranks of engine `torch` each hold a whole model."""
    return bool(chosen["engine"] == "torch" and chosen["zero_stage"] == 0 and chosen["data"] > 1)


def is_ddp(chosen: Chosen) -> bool:
    """Returns True if DDP reduces the gradients: see `render.averages_after_step`."""
    splits = chosen["pipeline"] > 1 and SCHEDULES[chosen["pipeline_schedule"]].splits_backward
    return is_replicated(chosen) and not splits


def is_zero(chosen: Chosen) -> bool:
    """Returns True if DeepSpeed shards any state."""
    return bool(chosen["engine"] == "deepspeed" and chosen["zero_stage"] >= 1)
