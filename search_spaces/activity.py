"""What a sweep does at this moment, for those who watch it; no decision depends on it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from search_spaces.trial import Estimate


class ActivityKind(Enum):
    """Kinds of activities, in the order in which they come."""

    READING_MODEL = "reading_model"
    COMPILING_OPERATORS = "compiling_operators"  # DeepSpeed's, once on a machine
    STARTING_RAY = "starting_ray"
    JOINING_RAY = "joining_ray"
    STARTING_WORKERS = "starting_workers"
    LOADING_WORKERS = "loading_workers"  # libraries, model and data
    BUILDING = "building"
    WARMING_UP = "warming_up"
    MEASURING = "measuring"
    EVALUATING = "evaluating"  # the longest samples, then a checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """One activity.

    Attributes:
        kind: Its kind.
        trial: Number of the trial; None outside of trials.
        validation: True in the validation of that trial.
        count: Workers that are up or ready, or steps of the trial that have run.
        most: All workers, or the most steps that it will run.
        samples_per_second: As measured so far; None until it is.
        at: Seconds since the epoch on the driver's clock; set by the driver.
    """

    kind: ActivityKind
    trial: int | None = None
    validation: bool = False
    count: int | None = None
    most: int | None = None
    samples_per_second: Estimate | None = None
    at: float = 0.0
