"""Trials as values: requests, outcomes and forecasts.

An expected failure, such as out of memory, is an outcome and not an exception.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter

from search_spaces.facts import LossDependence, StepFindings
from search_spaces.hardware.device import BlockLaunches
from search_spaces.hardware.noise import Noise
from search_spaces.hardware.properties import DeviceProperties
from search_spaces.plan import Plan
from search_spaces.specification.schema import SweepSpec

CrashKind = Literal[
    "exception",  # code raised, most often the user's
    "layout",  # the model could not be split or wrapped as the plan says
    "disk_full",
    "start_failed",  # the workers did not come up
    "worker_died",
    "collective",  # a peer died or timed out
    "device_error",  # only new processes recover from it
    "driver_lost",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A value and its 95 % confidence interval, in the value's unit."""

    value: float
    low: float
    high: float

    def __post_init__(self) -> None:
        if not self.low <= self.value <= self.high:
            raise ValueError(f"need low <= value <= high, got {self}")

    @property
    def relative_half_width(self) -> float:
        """Half of the interval over the value; infinite if the value is 0."""
        return (self.high - self.low) / 2 / self.value if self.value else float("inf")

    def times(self, factor: float) -> Estimate:
        """Returns the estimate multiplied by a positive factor."""
        return Estimate(value=self.value * factor, low=self.low * factor, high=self.high * factor)

    def rate_of(self, count: float) -> Estimate:
        """Returns how many of `count` a second has, if this is the seconds that they take."""
        return Estimate(value=count / self.value, low=count / self.high, high=count / self.low)

    def overlaps(self, other: Estimate) -> bool:
        """Returns True if the two intervals overlap."""
        return self.low <= other.high and other.low <= self.high


@dataclass(frozen=True, slots=True, kw_only=True)
class Anatomy:
    """Breakdown of a rank's peak memory, in bytes."""

    weights: int
    gradients: int
    optimizer_states: int
    activations: int  # tensors saved for backward, and temporaries
    fragmentation: int | None  # reserved minus allocated; None if the allocator does not report it
    outside: int  # outside the allocator. CUDA: context, communication; CPU: interpreter, libraries


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryReading:
    """Peak memory of the rank that came closest to its limit, in bytes.

    `peak_bytes` is compared with `limit_bytes`. On CUDA, it is the reserved peak plus memory
    outside the allocator; on CPU, the resident peak above the idle worker.

    `allocator_retries` counts, over all ranks and the measured steps, how often CUDA's allocator
    found no memory, gave its cache back and tried again.
    """

    rank: int
    limit_bytes: int
    peak_bytes: int
    reserved_bytes: int
    allocated_bytes: int | None  # None if the allocator does not count (CPU)
    anatomy: Anatomy
    allocator_retries: int = 0

    @property
    def share(self) -> float:
        """Peak over limit."""
        return self.peak_bytes / self.limit_bytes

    @property
    def reserved_share(self) -> float:
        """Share of the limit that the allocator reserved at its peak."""
        return self.reserved_bytes / self.limit_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Phases:
    """Median seconds of each phase of an optimizer step, on rank 0.

    Pipeline stages alternate between forward and backward and wait for each other, so all of that
    counts as backward.
    """

    data: float
    forward: float
    backward: float
    optimizer: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """State of host and device during the measured steps; None if unknown.

    Percentages are 0 to 100 and means over the samples. `throttled` names the reasons why the
    device lowered its clocks; do not trust a measurement with any.
    """

    host_cpu_percent: float | None
    host_memory_percent: float | None
    device_utilisation_percent: float | None
    device_power_watts: float | None
    device_memory_bytes: int | None
    throttled: tuple[str, ...]
    device_clock_mhz: float | None = None  # of the SMs; a locked clock shows here


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Seconds that the trial took on its workers, and the memory that it did not free."""

    build_seconds: float = 0.0
    steps_seconds: float = 0.0  # from the first optimizer step to the last, including barriers
    total_seconds: float
    residual_bytes: int  # not freed after the trial: maximum over ranks of after minus before
    compile_seconds: float = 0.0  # part of `steps_seconds` spent in torch.compile, on one rank


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationRun:
    """Additional parts of a validation, within the same memory limit.

    `worst_steps` counts optimizer steps on the longest samples: the first step of all, and some
    after the measured ones, with the last one after the checkpoint.
    """

    worst_steps: int
    evaluation_seconds: float  # of a forward pass over the longest samples, without gradients
    evaluation_loss: float | None  # None if the model returns no loss in evaluation mode
    checkpoint_seconds: float  # of the slowest rank
    checkpoint_bytes: int  # written by all ranks
    draws: bool  # training draws random numbers (dropout), so losses of two plans differ
    dependences: tuple[LossDependence, ...] = ()  # what the probe of the model found


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceiling:
    """Rate that a device could reach, in FLOP/s: measured in matmuls, or else of its data sheet."""

    flops_per_second: float
    measured: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The plan trains at this speed: wall-clock time of whole optimizer steps, over all ranks.

    `samples_per_second` and `step_seconds` are by the mean of the steps after warm-up, with its
    interval.

    `beaten` is True if the trial ended early because it was clearly slower than the incumbent; its
    interval is then wider. `seconds_by_step` is the wall-clock time of each step in `losses`; steps
    that were timed together have their mean. `perturbed` is that of the request: the initial
    weights were rounded otherwise. `stall_seconds` is what stalled windows took beyond the others,
    summed over the measured steps.

    `attention_backends` are those that torch's scaled_dot_product_attention chose for the longest
    samples on rank 0, such as `cudnn_attention`. It is empty without any, and for a compiled plan.

    `gradient_norm` is over all trained weights, before clipping, of the first step: on the longest
    samples, unless its gradient overflowed fp16. `joules_per_token` is of all ranks' devices; None
    if one does not count it. `expert_skew` is the number of tokens that the busiest expert rank
    got, over the mean; None without expert ranks.
    """

    kind: Literal["measured"] = "measured"
    samples_per_second: Estimate
    tokens_per_second: float  # without padding
    step_seconds: Estimate
    phases: Phases
    mfu: float | None  # model FLOPs per second over the ceiling, 0 to 1; None if unknown
    flops_per_step: float | None  # model FLOPs over all ranks: see `costs.model_work`
    memory: MemoryReading
    conditions: Conditions
    warmup_steps: int
    measured_steps: int
    losses: tuple[float, ...]  # of each optimizer step, including warm-up
    costs: Costs
    validation: ValidationRun | None = None  # None in an ordinary trial
    beaten: bool = False
    seconds_by_step: tuple[float, ...] = ()
    perturbed: bool = False
    attention_backends: tuple[str, ...] = ()
    stall_seconds: float = 0.0
    ceiling: Ceiling | None = None  # of a rank
    paper_mfu: float | None = None  # of the data sheet, by 6 N + 12 L d T, for comparisons
    gradient_norm: float | None = None
    joules_per_token: float | None = None
    expert_skew: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfMemory:
    """The plan needed more memory than the limit.

    `wanted_bytes` is a lower bound on its need: bytes in use plus bytes requested at the failure;
    None if the error did not tell.
    """

    kind: Literal["out_of_memory"] = "out_of_memory"
    where: Literal["device", "host"]
    wanted_bytes: int | None
    limit_bytes: int | None
    rank: int | None
    phase: str  # phase that failed: build, forward, backward, optimizer, data
    detail: str
    costs: Costs | None

    @property
    def excess(self) -> float | None:
        """Excess of the wanted bytes over the limit, as a share of the limit; None if unknown."""
        if self.wanted_bytes is None or not self.limit_bytes:
            return None
        return max(self.wanted_bytes / self.limit_bytes - 1, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedOut:
    """The trial missed its deadline, and its worker group was replaced."""

    kind: Literal["timed_out"] = "timed_out"
    deadline_seconds: float
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Crashed:
    """The trial crashed: user code raised, a worker died, a collective failed, ..."""

    kind: Literal["crashed"] = "crashed"
    cause: CrashKind
    rank: int | None
    phase: str
    detail: str  # one sentence
    trace: str = ""  # traceback
    costs: Costs | None = None  # None if the workers died


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A rule forbids the plan, so it never reached a worker."""

    kind: Literal["refused"] = "refused"
    rule: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Diverged:
    """The loss was not a finite number."""

    kind: Literal["diverged"] = "diverged"
    step: int
    loss: str  # "nan" or "inf", which JSON cannot express as numbers
    costs: Costs | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DoesNotTrain:
    """The loss was finite, but the first gradient was 0, or not finite (fp16: in all steps)."""

    kind: Literal["does_not_train"] = "does_not_train"
    norm: str  # of the gradient, over all trained weights: "0", "nan" or "inf"
    costs: Costs | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """The sweep was stopped, by a signal or Ctrl-C."""

    kind: Literal["stopped"] = "stopped"
    by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverDied:
    """The driver died during the trial.

    `times` counts deaths in a row of drivers during trials of the plan. `alone` is True if no other
    trial was under way at the last one.
    """

    kind: Literal["driver_died"] = "driver_died"
    times: int = 1
    alone: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkersFailed:
    """Workers failed in a way that may not be the plan's fault."""

    kind: Literal["workers_failed"] = "workers_failed"
    outcome: Crashed


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesLost:
    """Nodes left the cluster during the trial."""

    kind: Literal["nodes_lost"] = "nodes_lost"
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NoRoom:
    """The cluster had no room for a trial.

    Attributes:
        ranks: Ranks of the plan.
        ranks_per_node: Ranks that must share a node.
        minutes: Longest wait for room.
        available: Nodes that were up: their number, and the ranks that each holds.
    """

    kind: Literal["no_room"] = "no_room"
    ranks: int
    ranks_per_node: int = 1
    minutes: float
    available: tuple[tuple[int, int], ...] = ()


Interruption = Stopped | DriverDied | WorkersFailed | NodesLost | NoRoom


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancelled:
    """The trial ended through no fault of its plan."""

    kind: Literal["cancelled"] = "cancelled"
    cause: Interruption


NoTraining = Diverged | DoesNotTrain
Agreed = Measured | NoTraining  # all ranks come to it: none waits in a collective for another
Outcome = Agreed | OutOfMemory | TimedOut | Crashed | Refused | Cancelled

_ADAPTER: TypeAdapter[Outcome] = TypeAdapter(Annotated[Outcome, Field(discriminator="kind")])


def outcome_to_json(outcome: Outcome) -> dict[str, Any]:
    """Returns the outcome as JSON values, with its type in `kind`."""
    return _ADAPTER.dump_python(outcome, mode="json")


def outcome_from_json(dumped: dict[str, Any]) -> Outcome:
    """Reads an outcome that `outcome_to_json` wrote.

    Raises:
        pydantic.ValidationError: If it is not an outcome.
    """
    return _ADAPTER.validate_python(dumped)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRequest:
    """One trial: train `plan` on the spec's model and data, and measure it.

    Attributes:
        number: Number of the trial.
        plan: Plan to run.
        spec: Specification without addresses: see `SweepSpec.for_workers`.
        collective_seconds: Timeout of collectives, in seconds.
        incumbent: Seconds per step of the best plan so far; None if there is none. A clearly slower
            trial ends early.
        validation: True for a validation, a longer trial as `spec.validation` says.
        perturbed: True to start from weights that differ by as much as the plan's precision rounds.
            Losses then show how far rounding alone carries.
        dependences: What the probe of the model found, which the record of a validation keeps.
        step: What the probe of a step found: it says how micro-batches are weighted.
        noise: What earlier trials tell of the device's noise; None if there is none.
    """

    number: int
    plan: Plan
    spec: SweepSpec
    collective_seconds: float = 60.0
    incumbent: Estimate | None = None
    validation: bool = False
    perturbed: bool = False
    dependences: tuple[LossDependence, ...] = ()
    step: StepFindings | None = None
    noise: Noise | None = None

    @property
    def has_long_waits(self) -> bool:
        """True if ranks may wait long for one of them, which compiles or writes a checkpoint."""
        return self.validation or self.plan.compile


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanForecast:
    """Forecast of one plan, with 95 % confidence intervals.

    A sweep corrects the calibration that it began with by its own trials. Elsewhere the calibration
    is given, and the forecast has none of them.

    Attributes:
        samples_per_second: Expected speed.
        step_seconds: Expected seconds of an optimizer step.
        peak_bytes: Expected peak of the fullest rank.
        fits: Probability that the peak stays below the limit, 0 to 1.
        limited_by: Largest term of the step time.
        calibration_trials: Measured trials of the sweep's study that correct the calibration.
        filled: Mean work of a step over that of a step with only the longest samples, 0 to 1.
        host_bytes: Expected host memory of a node for offload.
    """

    samples_per_second: Estimate
    step_seconds: Estimate
    peak_bytes: Estimate
    fits: float
    limited_by: str
    calibration_trials: int
    filled: float = 1.0
    host_bytes: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """Hardware and software of a measurement.

    `environment` has what else decides the speed of a step: driver, CUDA, cuDNN and its folder,
    power limit, clocks, variables of allocators. A name that is missing is unknown. `properties`
    are None on a CPU.
    """

    device: str  # "cpu" or "cuda"
    device_name: str
    device_memory_bytes: int
    hosts: int
    python: str
    versions: tuple[tuple[str, str], ...]  # package, version; sorted
    environment: tuple[tuple[str, str], ...] = ()  # name, value; sorted
    properties: DeviceProperties | None = None
    launches: BlockLaunches | None = field(default=None, compare=False)  # measured at the start
    host_memory_bytes: int | None = field(default=None, compare=False)  # of a node


class ActivityKind(Enum):
    """Kinds of activities of a sweep, in the order in which they come."""

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
    """An activity of a sweep, for those who watch it; no decision depends on it."""

    kind: ActivityKind
    trial: int | None = None  # None outside of trials
    validation: bool = False
    count: int | None = None  # workers that are up or ready, or steps of the trial that have run
    most: int | None = None  # all workers, or the most steps that it will run
    samples_per_second: Estimate | None = None  # None until it is measured
    at: float = 0.0  # seconds since the epoch; set by the driver
