"""Reasons of decisions, as values: why a trial runs, why a search ends, why workers are replaced.

`orchestrator.report.reasons` puts them into words, and nothing else does.
"""

from dataclasses import dataclass
from typing import Any, Literal

from search_spaces.specification.schema import Sampler
from search_spaces.specification.sections import Metric
from search_spaces.trial import CrashKind, Interruption, NoRoom, Stopped


@dataclass(frozen=True, slots=True, kw_only=True)
class IsBaseline:
    """The plan is the baseline, which runs first."""

    kind: Literal["baseline"] = "baseline"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """A sampler of Optuna proposed the plan, without a reason."""

    kind: Literal["sampled"] = "sampled"
    sampler: Sampler


@dataclass(frozen=True, slots=True, kw_only=True)
class Promising:
    """The search expects most of this plan.

    Attributes:
        metric: What is maximized.
        fits: Probability that the plan fits in memory, 0 to 1.
        reaches: Probability that it reaches the required speed; None if none is required.
        gain: Expected gain over the incumbent, as a share of its value; None without an incumbent.
        changes: Knobs in which the plan differs from the incumbent, with the plan's values.
        forecast: False if the search had no forecast of the plan.
        measured_by: Name of another study that measured the plan.
    """

    kind: Literal["promising"] = "promising"
    metric: Metric = "samples_per_second"
    fits: float
    reaches: float | None = None
    gain: float | None = None
    changes: tuple[tuple[str, Any], ...] = ()
    forecast: bool = True
    measured_by: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """The plan was interrupted in an earlier trial."""

    kind: Literal["retry"] = "retry"
    trial: int
    cause: Interruption


@dataclass(frozen=True, slots=True, kw_only=True)
class Validates:
    """The plan of a trial is validated."""

    kind: Literal["validates"] = "validates"
    trial: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Remeasures:
    """The plan of a trial, one of the leaders or the baseline, is measured again."""

    kind: Literal["remeasures"] = "remeasures"
    trial: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChecksMachine:
    """The plan of a trial that was measured runs again, to see whether the machine still works.

    Attributes:
        trial: The trial that was measured.
        suspect: The trial that failed, through its plan or through the machine.
    """

    kind: Literal["checks_machine"] = "checks_machine"
    trial: int
    suspect: int


TrialReason = IsBaseline | Sampled | Promising | Retry | Validates | Remeasures | ChecksMachine


def measures_again(reason: TrialReason) -> bool:
    """Returns True for a trial of a plan that was measured before."""
    return isinstance(reason, Remeasures | ChecksMachine)


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetSpent:
    """A limit of the section `budget` is reached."""

    kind: Literal["budget"] = "budget"
    limit: Literal["trials", "minutes", "gpu_hours"]
    amount: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NotWorthIt:
    """The next trial would take longer than it is expected to save."""

    kind: Literal["not_worth_it"] = "not_worth_it"
    trial_seconds: float
    saved_seconds: float
    training_hours: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AllTried:
    """Every plan of the space has been tried."""

    kind: Literal["all_tried"] = "all_tried"
    plans: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NoImprovement:
    """The last trials, as many as `budget.patience`, found no better plan."""

    kind: Literal["no_improvement"] = "no_improvement"
    trials: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SameFailure:
    """No plan trained: all trials failed with one error."""

    kind: Literal["same_failure"] = "same_failure"
    trials: int
    cause: CrashKind | Literal["does_not_train"]
    error: str  # the norm of the gradient if the model does not train


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFailed:
    """The machine that runs the trials does not work: no plan is blamed."""

    kind: Literal["machine_failed"] = "machine_failed"
    cause: CrashKind
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSilent:
    """The cluster did not answer for minutes, so the driver ended."""

    kind: Literal["cluster_silent"] = "cluster_silent"


SearchReason = BudgetSpent | NotWorthIt | AllTried | NoImprovement | SameFailure
MachineReason = MachineFailed | ClusterSilent | NoRoom  # so that another driver can resume
StopReason = SearchReason | MachineReason | Stopped


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadlineMissed:
    """A trial missed its deadline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkersCrashed:
    """A trial crashed in a way that only new processes recover from."""

    cause: CrashKind


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryNotReleased:
    """A trial left memory allocated."""

    residual_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherRanks:
    """The next plan needs another number of ranks."""

    needed: int
    present: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherEnvironment:
    """The next plan needs processes started with other variables."""

    environment: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherNodes:
    """The next plan runs on other nodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FreshWorkers:
    """A validation runs in workers that have run nothing before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkersGone:
    """The workers ended."""


AfterTrial = DeadlineMissed | WorkersCrashed | MemoryNotReleased | WorkersGone
ForNextPlan = OtherRanks | OtherEnvironment | OtherNodes | FreshWorkers
ReplacementReason = AfterTrial | ForNextPlan
