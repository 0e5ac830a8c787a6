"""How a trial ended, as a value. An expected failure is a result, not an exception."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter

from search_spaces.plan import Plan
from search_spaces.spec.schema import SweepSpec

CrashKind = Literal[
    "exception",  # code raised, most often the user's
    "layout",  # the model could not be split or wrapped as the plan wants
    "disk_full",
    "worker_died",
    "collective",  # a peer went away, or did not come in time
    "device_error",  # only other processes leave it behind
    "driver_lost",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A value and the interval that holds it with 95 % confidence, in the value's unit."""

    value: float
    low: float
    high: float

    def __post_init__(self) -> None:
        if not self.low <= self.value <= self.high:
            raise ValueError(f"need low <= value <= high, got {self}")

    @property
    def relative_half_width(self) -> float:
        """Half the interval over the value; infinite where the value is 0."""
        return (self.high - self.low) / 2 / self.value if self.value else float("inf")

    def overlaps(self, other: Estimate) -> bool:
        """Whether the two intervals share a value."""
        return self.low <= other.high and other.low <= self.high


@dataclass(frozen=True, slots=True, kw_only=True)
class Anatomy:
    """What the peak was made of, in bytes of one rank.

    `activations` is all that is neither model state nor waste: what backward needs and
    temporaries. `fragmentation` is reserved less allocated, None where the device's
    allocator does not say. `outside` is what no allocator of ours holds: on CUDA the context
    and communication buffers, on CPU the interpreter and its libraries.
    """

    weights: int
    gradients: int
    optimizer_states: int
    activations: int
    fragmentation: int | None
    outside: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryReading:
    """Peak memory of the rank that came closest to its limit, in bytes.

    `peak_bytes` is what is held against `limit_bytes`: on CUDA the reserved peak plus what lies
    outside the allocator, on CPU the resident peak above the worker's baseline.
    `allocated_bytes` is None where the allocator does not count (CPU).
    """

    rank: int
    limit_bytes: int
    peak_bytes: int
    reserved_bytes: int
    allocated_bytes: int | None
    anatomy: Anatomy

    @property
    def share(self) -> float:
        """Peak over limit."""
        return self.peak_bytes / self.limit_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Phases:
    """Median seconds of one optimizer step, by what they were spent on (rank 0).

    A pipeline's stages alternate between forward and backward, and wait for each other: all of it
    counts as backward.
    """

    data: float
    forward: float
    backward: float
    optimizer: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """What machine and device did during the measured steps; None where nobody could say.

    Percentages are 0 to 100 and means over the samples taken. `throttled` names the reasons
    for which the device lowered its clocks; a measurement with any is not to be trusted.
    """

    host_cpu_percent: float | None
    host_memory_percent: float | None
    device_utilisation_percent: float | None
    device_power_watts: float | None
    device_memory_bytes: int | None
    throttled: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """What the trial took on its workers, in seconds, and what it left behind.

    `steps_seconds` is from the first optimizer step to the last, with the barriers between them.
    `compile_seconds` is the part of it in which `torch.compile` was at work, on one rank.
    `residual_bytes` is the memory that did not come back after the trial (largest over the ranks,
    against the baseline before it).
    """

    build_seconds: float
    steps_seconds: float
    total_seconds: float
    residual_bytes: int
    compile_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationRun:
    """What a validation did beside the measured steps, within the same memory limit.

    `worst_steps` are optimizer steps on the longest samples there are: the first of all steps and
    some behind the measured ones, the last of them after the checkpoint.
    """

    worst_steps: int
    evaluation_seconds: float  # of a forward pass over the longest samples, without gradients
    evaluation_loss: float | None  # None where the model gives no loss in evaluation mode
    checkpoint_seconds: float  # of the rank that took longest
    checkpoint_bytes: int  # written by all ranks
    draws: bool  # training draws random numbers (dropout), so that losses of two plans differ


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The plan trains, and this fast: wall-clock over whole optimizer steps, all ranks.

    `beaten`: it ended as soon as it was slower beyond doubt than the best plan until then, and is
    measured less exactly for it. `seconds_by_step` is the wall-clock of each optimizer step that
    `losses` tells of, the mean of those that were timed together; () in records of before.
    """

    kind: Literal["measured"] = "measured"
    samples_per_second: Estimate
    tokens_per_second: float  # tokens of samples; padding does not count
    step_seconds: Estimate
    phases: Phases
    mfu: float | None  # model FLOPs over the device's peak, 0 to 1; None if the peak is unknown
    flops_per_step: float | None  # counted, all ranks, recomputation left out
    memory: MemoryReading
    conditions: Conditions
    warmup_steps: int
    measured_steps: int
    losses: tuple[float, ...]  # of each optimizer step, warm-up included
    costs: Costs
    validation: ValidationRun | None = None  # None in a trial that only measured
    beaten: bool = False
    seconds_by_step: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfMemory:
    """The plan wanted more than the limit.

    `wanted_bytes` is the least it would have needed: what was held plus what was asked for
    when it failed, None if the error did not say.
    """

    kind: Literal["out_of_memory"] = "out_of_memory"
    where: Literal["device", "host"]
    wanted_bytes: int | None
    limit_bytes: int | None
    rank: int | None
    phase: str  # what was under way: build, forward, backward, optimizer, data
    detail: str
    costs: Costs | None

    @property
    def excess(self) -> float | None:
        """Bytes wanted over the limit, less 1: above 0, the larger the further off."""
        if self.wanted_bytes is None or not self.limit_bytes:
            return None
        return max(self.wanted_bytes / self.limit_bytes - 1, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedOut:
    """The trial did not end before its deadline; its group was replaced."""

    kind: Literal["timed_out"] = "timed_out"
    deadline_seconds: float
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Crashed:
    """The trial broke: user code raised, a worker died, a collective failed, ..."""

    kind: Literal["crashed"] = "crashed"
    cause: CrashKind
    rank: int | None
    phase: str
    detail: str  # one sentence
    trace: str = ""  # the traceback, for the person who has to mend it
    costs: Costs | None = None  # None if the workers did not live to tell


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """The plan never reached a worker: a rule forbids it."""

    kind: Literal["refused"] = "refused"
    rule: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Diverged:
    """The loss was not a finite number."""

    kind: Literal["diverged"] = "diverged"
    step: int
    loss: str  # "nan" or "inf": JSON has no such numbers
    costs: Costs | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancelled:
    """Somebody stopped the sweep while the trial was under way."""

    kind: Literal["cancelled"] = "cancelled"
    detail: str


Outcome = Measured | OutOfMemory | TimedOut | Crashed | Refused | Diverged | Cancelled

_ADAPTER: TypeAdapter[Outcome] = TypeAdapter(Annotated[Outcome, Field(discriminator="kind")])


def outcome_to_json(outcome: Outcome) -> dict[str, Any]:
    """The outcome as JSON values, told apart by `kind`."""
    dumped: dict[str, Any] = _ADAPTER.dump_python(outcome, mode="json")
    return dumped


def outcome_from_json(dumped: dict[str, Any]) -> Outcome:
    """The outcome that `outcome_to_json` wrote.

    Raises:
        pydantic.ValidationError: If it is no outcome.
    """
    return _ADAPTER.validate_python(dumped)


def sentence(outcome: Outcome) -> str:
    """The outcome in a few words, for tables and logs."""
    match outcome:
        case Measured():
            rate = outcome.samples_per_second
            spread = 100 * rate.relative_half_width
            early = ", ended early: slower than the best" if outcome.beaten else ""
            return f"{rate.value:.2f} samples/s ± {spread:.1f} %{early}"
        case OutOfMemory():
            excess = outcome.excess
            over = "" if excess is None else f", wanted {100 * (1 + excess):.0f} % of the limit"
            return f"out of {outcome.where} memory in {outcome.phase}{over}"
        case TimedOut():
            return f"no end after {outcome.deadline_seconds:.0f} s"
        case Crashed():
            return f"crashed in {outcome.phase}: {outcome.detail}"
        case Refused():
            return f"refused ({outcome.rule}): {outcome.detail}"
        case Diverged():
            return f"loss was {outcome.loss} at step {outcome.step}"
        case Cancelled():
            return f"cancelled: {outcome.detail}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRequest:
    """One trial: train `plan` on the spec's model and data, and measure it.

    `collective_seconds` bounds how long a rank waits for the others in a collective. `incumbent` is
    what a step of the best plan so far takes, in seconds: a trial that is slower beyond doubt ends
    early, one that is as fast is measured more exactly. None: there is none to beat. A validation
    is a trial that does more, as `spec.validation` says.
    """

    number: int
    plan: Plan
    spec: SweepSpec
    collective_seconds: float = 60.0
    incumbent: Estimate | None = None
    validation: bool = False

    @property
    def snapshot(self) -> str | None:
        """How the file begins that a GPU's rank leaves if it runs out of memory; None: it does not.

        Only where the specification names the study, which one that a person runs may not.
        """
        name = self.spec.study.name
        return (
            None if name is None else snapshot_stem(self.spec, name, self.number, self.validation)
        )


def snapshot_stem(spec: SweepSpec, study: str, number: int, validation: bool = False) -> str:
    """How the file begins in which a trial that ran out of a GPU's memory leaves its snapshot."""
    kind = "validation" if validation else "trial"
    return str(Path(spec.study.folder, study, "snapshots", f"{kind}-{number}"))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanForecast:
    """The forecast of one plan, as a record keeps it; intervals hold with 95 % confidence.

    `peak_bytes` is what the fullest rank is expected to hold, `fits` the probability that this
    stays below the limit. `learned_from` counts the measured trials of the study that had
    corrected the forecast by then; what was expected without them stands beside it, so that one
    can tell what they taught. `filled` is the share of the work of the longest samples that a step
    has in the mean: the step of those takes so much longer.
    """

    samples_per_second: Estimate
    step_seconds: Estimate
    peak_bytes: Estimate
    fits: float  # 0 to 1
    limited_by: str  # the term that takes most of a step
    learned_from: int
    unlearned_samples_per_second: float
    unlearned_peak_bytes: float
    filled: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """How far a forecast was off: forecast over measurement, less 1."""

    speed: float
    memory: float | None  # None where no memory was seen to be held
    unlearned_speed: float
    unlearned_memory: float | None


def errors(expected: PlanForecast | None, outcome: Outcome) -> Errors | None:
    """How far off a forecast was; None where there was none, or nothing to hold against it."""
    if expected is None or not isinstance(outcome, Measured):
        return None
    rate, peak = outcome.samples_per_second.value, outcome.memory.peak_bytes
    if not rate:
        return None
    return Errors(
        speed=expected.samples_per_second.value / rate - 1,
        memory=expected.peak_bytes.value / peak - 1 if peak else None,
        unlearned_speed=expected.unlearned_samples_per_second / rate - 1,
        unlearned_memory=expected.unlearned_peak_bytes / peak - 1 if peak else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """Hardware and software that a measurement belongs to."""

    device: str  # "cpu" or "cuda"
    device_name: str
    device_memory_bytes: int
    hosts: int
    python: str
    versions: tuple[tuple[str, str], ...]  # package, version; sorted


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One finished trial of a study, or the validation of the plan of trial `number`."""

    number: int
    plan: Plan
    outcome: Outcome
    why: str  # the sentence with which the plan was asked for
    started_at: float  # seconds since the epoch
    ended_at: float
    fingerprint: Fingerprint | None
    forecast: PlanForecast | None = None  # None where nothing could be forecast
    validation: bool = False


def closed(number: int, plan: Plan, outcome: Outcome, why: str, *, at: float) -> Record:
    """The record of a trial that somebody else than its workers closed."""
    return Record(
        number=number,
        plan=plan,
        outcome=outcome,
        why=why,
        started_at=at,
        ended_at=at,
        fingerprint=None,
    )
