"""Measured outcomes of trials that no worker ran."""

from search_spaces.trial import (
    Anatomy,
    Conditions,
    Costs,
    Estimate,
    Measured,
    MemoryReading,
    Phases,
)

COSTS = Costs(build_seconds=0.4, steps_seconds=4.8, total_seconds=5.6, residual_bytes=0)


def measured(
    rate: float,
    *,
    batch: int,
    tokens: int,
    half_width: float,
    peak_bytes: int,
    limit_bytes: int,
    losses: tuple[float, ...] = (),
    costs: Costs = COSTS,
) -> Measured:
    """Returns the outcome of a trial at a rate.

    Args:
        rate: Samples per second.
        batch: Samples of an optimizer step.
        tokens: Tokens of a sample.
        half_width: Half of each interval, as a share of its value.
        peak_bytes: The peak of memory, all of it weights.
        limit_bytes: The limit of memory.
        losses: The loss of each step.
        costs: What the trial took.
    """
    step = batch / rate
    return Measured(
        samples_per_second=around(rate, half_width),
        tokens_per_second=rate * tokens,
        step_seconds=around(step, half_width),
        phases=Phases(data=0.0, forward=step / 3, backward=step / 2, optimizer=step / 6),
        mfu=None,
        flops_per_step=None,
        memory=MemoryReading(
            rank=0,
            limit_bytes=limit_bytes,
            peak_bytes=peak_bytes,
            reserved_bytes=peak_bytes,
            allocated_bytes=None,
            anatomy=Anatomy(
                weights=peak_bytes,
                gradients=0,
                optimizer_states=0,
                activations=0,
                fragmentation=None,
                outside=0,
            ),
        ),
        conditions=Conditions(
            host_cpu_percent=None,
            host_memory_percent=None,
            device_utilisation_percent=None,
            device_power_watts=None,
            device_memory_bytes=None,
            throttled=(),
        ),
        warmup_steps=2,
        measured_steps=12,
        losses=losses,
        costs=costs,
    )


def around(value: float, half_width: float) -> Estimate:
    """Returns an interval around a value; `half_width` is a share of it."""
    return Estimate(value=value, low=value * (1 - half_width), high=value * (1 + half_width))
