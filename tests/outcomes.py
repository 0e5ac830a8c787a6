"""Outcomes of trials, forecasts and a fingerprint, for tests of all packages."""

from typing import Any

from search_spaces.specification.schema import GIB
from search_spaces.trial import (
    Anatomy,
    Cancelled,
    Ceiling,
    Conditions,
    Costs,
    Crashed,
    Diverged,
    DoesNotTrain,
    Estimate,
    Fingerprint,
    Measured,
    MemoryReading,
    Outcome,
    OutOfMemory,
    Phases,
    PlanForecast,
    Refused,
    Stopped,
    TimedOut,
)

LIMIT_BYTES = GIB // 2
CPU_FINGERPRINT = Fingerprint(
    device="cpu",
    device_name="Xeon Platinum 8488C",
    device_memory_bytes=8 * GIB,
    hosts=1,
    python="3.11.7",
    versions=(("ray", "2.60.0"), ("torch", "2.13.0")),
)


def make_conditions(throttled: tuple[str, ...] = ()) -> Conditions:
    """A busy CPU host without a GPU."""
    return Conditions(
        host_cpu_percent=96.5,
        host_memory_percent=31.0,
        device_utilisation_percent=None,
        device_power_watts=None,
        device_memory_bytes=None,
        throttled=throttled,
    )


def make_costs(**changes: Any) -> Costs:
    """Returns the costs of a short trial."""
    base: dict[str, Any] = {
        "build_seconds": 0.4,
        "steps_seconds": 4.8,
        "total_seconds": 5.6,
        "residual_bytes": 3 * 2**20,
    }
    return Costs(**{**base, **changes})


def make_measured(rate: float = 40.0, share: float = 0.6, **changes: Any) -> Measured:
    """A measurement of `rate` samples/s (± 1.5 %) with a peak of `share` of the limit."""
    peak = int(share * LIMIT_BYTES)
    parts = [peak * percent // 100 for percent in (6, 6, 12)]
    anatomy = Anatomy(
        weights=parts[0],
        gradients=parts[1],
        optimizer_states=parts[2],
        activations=peak - sum(parts) - peak // 10,
        fragmentation=None,
        outside=peak // 10,
    )
    memory = MemoryReading(
        rank=1,
        limit_bytes=LIMIT_BYTES,
        peak_bytes=peak,
        reserved_bytes=peak - peak // 10,
        allocated_bytes=None,
        anatomy=anatomy,
    )
    step = 16 / rate
    base: dict[str, Any] = {
        "samples_per_second": Estimate(value=rate, low=rate * 0.985, high=rate * 1.015),
        "tokens_per_second": rate * 68.0,
        "step_seconds": Estimate(value=step, low=step * 0.985, high=step * 1.015),
        "phases": Phases(
            data=step * 0.02, forward=step * 0.3, backward=step * 0.6, optimizer=step * 0.08
        ),
        "mfu": 0.31,
        "ceiling": Ceiling(flops_per_second=1.3e11, measured=True),
        "paper_mfu": 0.26,
        "flops_per_step": 1.4e10,
        "memory": memory,
        "conditions": make_conditions(),
        "warmup_steps": 2,
        "measured_steps": 12,
        "losses": tuple(6.9 - 0.05 * index for index in range(14)),
        "seconds_by_step": (4 * step, *[step] * 13),
        "costs": make_costs(),
    }
    return Measured(**{**base, **changes})


def make_oom(wanted: float | None = 1.3, **changes: Any) -> OutOfMemory:
    """Out of memory in the forward pass, having wanted so much of the limit."""
    base: dict[str, Any] = {
        "where": "device",
        "wanted_bytes": None if wanted is None else int(wanted * LIMIT_BYTES),
        "limit_bytes": LIMIT_BYTES,
        "rank": 0,
        "phase": "forward",
        "detail": "DefaultCPUAllocator: can't allocate memory: tried to allocate 67108864 bytes",
        "costs": make_costs(),
    }
    return OutOfMemory(**{**base, **changes})


def every_outcome() -> tuple[Outcome, ...]:
    """One or more of each kind of ending, the baseline's measurement first."""
    return (
        make_measured(18.0, 0.35),
        make_oom(1.31),
        make_measured(41.2, 0.8),
        make_measured(40.9, 0.62),
        make_measured(44.0, 0.97),  # above the line
        Crashed(
            cause="exception",
            rank=1,
            phase="build",
            detail="ValueError: [no head] size given",
            trace="Traceback (most recent call last): ...",
        ),
        TimedOut(deadline_seconds=60.0, detail="rank 1 did not answer"),
        Diverged(step=3, loss="nan", costs=make_costs()),
        make_oom(None, where="host", phase="data", rank=None, limit_bytes=None),
        Refused(rule="attention_is_offered", detail="LlamaForCausalLM has no flash attention"),
        DoesNotTrain(norm="0", costs=make_costs()),
        Cancelled(cause=Stopped(by="Ctrl-C")),
    )


def make_expectation(
    rate: float | None = None, share: float = 0.5, *, step: float = 0.4, factor: float = 1.25
) -> PlanForecast:
    """Steps of `step` seconds, or `rate` samples/s, and a peak of `share` of the limit.

    `factor` leads from a value to the end of its interval.
    """
    seconds = step if rate is None else 16 / rate

    def around(value: float) -> Estimate:
        return Estimate(value=value, low=value / factor, high=value * factor)

    return PlanForecast(
        samples_per_second=around(16 / seconds),
        step_seconds=around(seconds),
        peak_bytes=around(share * LIMIT_BYTES),
        fits=0.93,
        limited_by="matmul",
        calibration_trials=5,
    )
