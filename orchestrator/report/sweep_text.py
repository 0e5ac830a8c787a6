"""Sentences about a sweep: the best plan, and the evidence for it."""

import math
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import replace

from orchestrator.core.failures import cause_of_all
from orchestrator.core.objective import (
    PEAK_NOISE_SHARE,
    best,
    memory_of,
    outcome_counts,
    score,
    speedup,
    throughput,
)
from orchestrator.core.records import Record, forecast_errors
from orchestrator.core.repeats import infeasible_plans
from orchestrator.core.state import SweepState
from orchestrator.report import labels
from orchestrator.report.format import (
    duration,
    gib,
    mfu_sentence,
    plural,
    ratio_words,
    significant,
    spread,
    times_words,
)
from orchestrator.report.reasons import stop_words
from orchestrator.report.sweep_tables import baseline_record, closest_record, memory_excess
from search_spaces.safety.files import packaged_table
from search_spaces.specification.sections import SPEED_METRICS, Metric
from search_spaces.trial import Measured

_MOST_NUMBERS = 12  # trial numbers in a list
# Share by which two trials of a plan differ on a quiet machine, with 95 %
_LEAST_DIFFERENCE = 0.01


def best_sentence(state: SweepState) -> str:
    """Names the best plan, or the closest one if no plan is feasible."""
    top = state.best
    if top is None:
        return _nothing_feasible(state)
    assert isinstance(top.outcome, Measured)
    memory = top.outcome.memory
    return (
        f"trial {top.number} is best{_metric_words(state)} ({labels.plan_words(top.plan)}):"
        f" {spread(top.outcome.samples_per_second)} samples/s, peak"
        f" {gib(memory.peak_bytes)} GiB, {100 * memory.share:.0f} % of the limit"
    )


def _metric_words(state: SweepState) -> str:
    """Names the metric and its value, or nothing if it is speed."""
    metric, top = state.objective.metric, state.best
    reached = None if top is None else state.objective.value(top)
    match metric:
        case "samples_per_price" if reached is not None:
            return f" by price, at {spread(reached)} {labels.METRIC_WORDS[metric]}"
        case "tokens_per_joule" if reached is not None:
            return f" by energy, at {spread(reached)} {labels.METRIC_WORDS[metric]}"
        case "headroom":
            return " by free memory"
        case _:
            return ""


def _nothing_feasible(state: SweepState) -> str:
    if not state.records:
        ended = state.ended
        return (
            f"no trial finished: {stop_words(ended.reason)}" if ended else "no trial has ended yet"
        )
    if failed := failed_validations_sentence(state):
        return failed
    if cause := cause_of_all(state.records):
        return f"this machine or environment fails every plan: first cause {cause.detail}"
    closest = closest_record(state.records, state.objective)
    if closest is None:
        counts = labels.counts_words(outcome_counts(state.records))
        return f"no plan is feasible, and no trial reported how much memory it wanted ({counts})"
    if shortfall := shortfall_sentence(state):
        return f"no plan is feasible; {shortfall}"
    excess = memory_excess(closest, state.objective) or 0.0
    violation = next(state.objective.violations(closest), None)
    if violation is not None and violation.metric in ("allocator_retries", "memory_gib"):
        return (
            f"no plan is feasible; the closest is trial {closest.number}"
            f" ({labels.plan_words(closest.plan)}), but {labels.violation_words(violation)}"
        )
    return (
        f"no plan is feasible; the closest is trial {closest.number}, {100 * excess:.0f} % over"
        f" usable memory ({labels.plan_words(closest.plan)}):"
        f" {labels.outcome_words(closest.outcome)}; lower objective.headroom, raise"
        " cluster.memory_gib or use a smaller model"
    )


def failed_validations_sentence(state: SweepState) -> str:
    """Says why every feasible plan failed validation; empty if one passed or there was none."""
    if state.best is not None or best(state.records, state.objective) is None:
        return ""
    reasons = "; ".join(
        f"the validation of trial {number} failed: {labels.failure_words(reason)}"
        for number, reason in state.failed_validations.items()
    )
    return f"no plan within the memory headroom passed validation ({reasons})"


def shortfall_sentence(state: SweepState) -> str:
    """Says which bound the fastest plan within the headroom misses; empty if there is none."""
    objective = state.objective
    closest = best(state.records, replace(objective, metric="samples_per_second", lower_bounds=()))
    violation = None if closest is None else next(objective.violations(closest), None)
    if closest is None or violation is None:
        return ""
    plan, words = labels.plan_words(closest.plan), labels.violation_words(violation)
    return f"the closest is trial {closest.number} ({plan}), but {words}"


def speedup_sentence(state: SweepState) -> str:
    """Compares the speed of the best plan with the baseline, or says why that is unknown."""
    name = f"the baseline ({labels.plan_words(state.space.baseline)})"
    top, baseline = state.best, baseline_record(state)
    if baseline is None:
        return f"speed-up unknown: {name} was not run"
    if not isinstance(baseline.outcome, Measured):
        return (
            f"speed-up unknown: {name} was not measured: {labels.outcome_words(baseline.outcome)}"
        )
    if top is not None and top.plan == state.space.baseline:
        return f"no trial beats {name}"
    gain = speedup(top, baseline)
    if gain is None:
        return f"speed-up over {name} unknown"
    note = ""
    if not state.objective.keeps_memory(baseline.outcome.memory):
        note = ", which is over usable memory itself"
    elif gain.low <= 1 <= gain.high:
        note = ", not clear of it"
    return f"{ratio_words(gain)} the speed of {name}{note}"


def regret_sentence(state: SweepState) -> str:
    """States the regret bound of the sweep; empty if there is none."""
    ended = state.ended
    if ended is None or ended.regret_bound is None or state.best is None or not ended.untried:
        return ""
    ratio, metric = ended.regret_bound, state.objective.metric
    if ratio > _LARGEST_BOUND:
        return (
            "regret bound: none yet, too little is known of what the"
            f" {ended.untried:,} untried plans could reach"
        )
    amount = f"{100 * (1 - 1 / ratio if metric == 'headroom' else ratio - 1):.1f} %"
    if ratio - 1 < measurable_difference(state.best, metric):
        amount = "measurements can tell"
    return (
        f"regret bound: no untried plan {_BETTER[metric]} than the best by more than {amount}"
        f" ({ended.untried:,} untried, 95 % confidence, model-based)"
    )


# Beyond it a bound says how little the search knows and nothing about the plans
_LARGEST_BOUND = 3.0
_BETTER: Mapping[Metric, str] = packaged_table(__package__, "words.yaml")["better_plans"]


def measurable_difference(record: Record, metric: Metric) -> float:
    """Returns the share by which a plan must be better than a record for measurements to tell.

    That is the half-width of the record's 95 % interval, and at least 1 %.
    """
    assert isinstance(record.outcome, Measured)
    if metric == "headroom":
        return max(
            PEAK_NOISE_SHARE / max(record.outcome.memory.share, PEAK_NOISE_SHARE), _LEAST_DIFFERENCE
        )
    rate = record.outcome.samples_per_second
    return max(rate.high / rate.value - 1, _LEAST_DIFFERENCE)


def equals_sentence(state: SweepState) -> str:
    """Lists the plans equal to the best and says which to prefer; empty if there are none."""
    equal = state.ties
    if len(equal) < 2:
        return ""
    numbers = [str(record.number) for record in sorted(equal, key=lambda one: one.number)]
    listed = ", ".join(numbers[:_MOST_NUMBERS]) + (", ..." if len(numbers) > _MOST_NUMBERS else "")
    words = f"= statistically equal to the best ({len(equal)} plans: trials {listed})"
    first = equal[0]
    if first == max(equal, key=lambda record: score(record, state.objective)):
        return words
    if state.objective.metric not in SPEED_METRICS:
        return f"{words}; trial {first.number} is the fastest, {throughput(first):.4g} samples/s"
    fastest = max(throughput(record) for record in equal)
    cost = f"{100 * (1 - throughput(first) / fastest):.1f} % slower than the fastest of them"
    if state.spec.objective.prefer == "headroom":
        used = 100 * memory_of(first).share
        room = f"leaves the most memory free, {used:.0f} % of the limit used"
        return f"{words}; trial {first.number} {room}, and is {cost}"
    count = times_words(state.speeds.by_plan[first.plan].count)
    return f"{words}; trial {first.number}, measured {count}, is the surest of them, though {cost}"


def repeats_sentence(state: SweepState) -> str:
    """Says how often the best plan and its closest competitor were measured; empty without a speed.

    Before any plan was measured twice, intervals are those within one trial, which is said instead.
    """
    top, speeds = state.best, state.speeds
    if top is None or state.objective.metric == "headroom":
        return ""
    if not speeds.noise.degrees:
        return "measured once: its interval is that of one trial, and trials differ by more"
    words = f"measured {times_words(speeds.by_plan[top.plan].count)}"
    infeasible = infeasible_plans(state.records, state.objective)
    competitors = [
        record
        for record in state.by_plan
        if record.plan != top.plan
        and record.plan in speeds.by_plan
        and speeds.by_plan[record.plan].count > 1
        and record.plan not in infeasible
    ]
    if competitors:
        competitor = max(competitors, key=lambda record: speeds.score(record.plan))
        ahead = math.expm1(speeds.score(top.plan) - speeds.score(competitor.plan))
        half = math.expm1(speeds.margin(top.plan, competitor.plan))
        words += (
            f", {100 * ahead:+.1f} % (± {100 * half:.1f}) against trial {competitor.number},"
            f" measured {times_words(speeds.by_plan[competitor.plan].count)}"
        )
    noise = speeds.noise
    words += f"; trials of the same plan differ by {100 * noise.deviation:.1f} %: a "
    if not noise.is_noisy:
        return f"{words}quiet machine"
    drifts = f", whose speed drifts for about {duration(noise.seconds)} at a time"
    return f"{words}noisy machine{drifts if noise.drift else ''}"


def lossy_sentence(state: SweepState) -> str:
    """Says how the best plan is lossy and names the best lossless one; empty if it is lossless."""
    top = state.best
    if top is None or not (lossy := labels.lossy_words(top.plan, state.spec)):
        return ""
    records = [
        record for record in state.by_plan if not labels.lossy_words(record.plan, state.spec)
    ]
    lossless = best(records, state.objective)
    train = state.spec.train
    words = f"lossy: it trains with {lossy}; train specifies {train.optimizer} in {train.precision}"
    if lossless is None or not isinstance(lossless.outcome, Measured):
        return f"{words}; no lossless plan is feasible"
    rate, plan = spread(lossless.outcome.samples_per_second), labels.plan_words(lossless.plan)
    return f"{words}; the best lossless plan is trial {lossless.number} ({plan}): {rate} samples/s"


def compile_sentence(state: SweepState) -> str:
    """Reports the time of `torch.compile`, which no speed includes; empty if nothing compiled."""
    seconds = {
        record.number: record.outcome.costs.compile_seconds
        for record in state.records
        if isinstance(record.outcome, Measured) and record.outcome.costs.compile_seconds > 0
    }
    if not seconds:
        return ""
    total, trials = duration(sum(seconds.values())), plural(len(seconds), "trial")
    words = f"torch.compile took {total} in {trials}"
    if state.best is not None and state.best.number in seconds:
        words += f", {duration(seconds[state.best.number])} of it for the best plan"
    return f"{words}; samples/s exclude it"


def forecast_sentence(state: SweepState) -> str:
    """Reports the median error of forecasts of measured trials; empty if there were none."""
    pairs = ((record.forecast, record.outcome) for record in state.records)
    errors = [error for pair in pairs if (error := forecast_errors(*pair))]
    if not errors:
        return ""
    speed = statistics.median(abs(error.speed) for error in errors)
    peaks = [abs(error.memory) for error in errors if error.memory is not None]
    memory = f" and {100 * statistics.median(peaks):.0f} % in peak memory" if peaks else ""
    trials = plural(len(errors), "trial")
    return f"the median forecast error of {trials} is {100 * speed:.0f} % in speed{memory}"


def _recorded(outcome: Measured) -> Iterator[str]:
    if outcome.gradient_norm is not None:
        yield f"norm of its first gradient: {significant(outcome.gradient_norm)}"
    if outcome.joules_per_token is not None:
        yield f"energy: {significant(outcome.joules_per_token)} joules per token"
    if outcome.expert_skew is not None:
        yield f"tokens of the busiest expert rank: {outcome.expert_skew:.2f} x the mean"


def evidence_sentences(state: SweepState) -> Iterator[str]:
    """Yields the evidence for the best plan; nothing without one."""
    if state.best is None:
        return
    outcome = state.best.outcome
    assert isinstance(outcome, Measured)
    sentences = (
        repeats_sentence(state),
        *labels.validation_sentences(state),
        mfu_sentence(outcome.mfu, outcome.ceiling, outcome.paper_mfu),
        *_recorded(outcome),
        labels.fingerprint_sentence(state),
        regret_sentence(state),
    )
    yield from filter(None, sentences)
