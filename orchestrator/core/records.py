"""Records: what a study keeps of each trial that ended."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice

from orchestrator.core.reasons import TrialReason
from search_spaces.hardware.noise import Noise, noise_prior
from search_spaces.plan import Plan
from search_spaces.trial import Fingerprint, Measured, Outcome, PlanForecast

_NOISE_TRIALS = 20  # newest records that estimate the device's noise, which may change over time


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One finished trial of a study, or the validation of the plan of trial `number`."""

    number: int
    plan: Plan
    outcome: Outcome
    reason: TrialReason  # for trying the plan
    started_at: float  # seconds since the epoch
    ended_at: float
    fingerprint: Fingerprint | None
    forecast: PlanForecast | None = None  # None if the plan could not be forecast
    validation: bool = False


def closed_record(
    number: int, plan: Plan, outcome: Outcome, reason: TrialReason, *, at: float
) -> Record:
    """Returns the record of a trial that ended without its workers, at a time since the epoch."""
    return Record(
        number=number,
        plan=plan,
        outcome=outcome,
        reason=reason,
        started_at=at,
        ended_at=at,
        fingerprint=None,
    )


def last_fingerprint(records: Sequence[Record]) -> Fingerprint | None:
    """Returns the fingerprint of the last record that has one."""
    return next((one.fingerprint for one in reversed(records) if one.fingerprint), None)


def learned_noise(records: Sequence[Record], fingerprint: Fingerprint) -> Noise:
    """Returns the noise of the fingerprint's device, by its newest trials and repeats."""
    trials = (
        (outcome.step_seconds.value * outcome.measured_steps, outcome.stall_seconds)
        for one in reversed(records)
        if isinstance(outcome := one.outcome, Measured)
        and one.fingerprint is not None
        and one.fingerprint.device_name == fingerprint.device_name
    )
    last = tuple(islice(trials, _NOISE_TRIALS))
    return replace(
        noise_prior(fingerprint.device),
        seconds=sum(seconds for seconds, _ in last),
        stall_seconds=sum(lost for _, lost in last),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastErrors:
    """Relative errors of a forecast: forecast / measurement - 1."""

    speed: float
    memory: float | None  # None if the measured peak is 0


def forecast_errors(expected: PlanForecast | None, outcome: Outcome) -> ForecastErrors | None:
    """Returns the relative errors of a forecast; None without a forecast or a measurement."""
    if expected is None or not isinstance(outcome, Measured):
        return None
    rate, peak = outcome.samples_per_second.value, outcome.memory.peak_bytes
    if not rate:
        return None
    return ForecastErrors(
        speed=expected.samples_per_second.value / rate - 1,
        memory=expected.peak_bytes.value / peak - 1 if peak else None,
    )
