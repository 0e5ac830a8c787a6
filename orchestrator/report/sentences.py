"""What a sweep found, in sentences: the same for the report and for MLflow's description."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import replace

from orchestrator.core.objective import WORDS, best, keeps_headroom, score, throughput
from orchestrator.core.state import SweepState
from orchestrator.view.figures import baseline_record, nearest, over_the_line, speedup
from orchestrator.view.plan_words import lossy_words, plan_words
from orchestrator.view.words import duration, gib, outcome_words, plural, spread
from search_spaces.expectation import errors
from search_spaces.outcome import Measured
from search_spaces.record import Record
from search_spaces.spec.objective_section import Metric

_NAMED = 12  # plans of one set that are told by number


def answer(state: SweepState) -> str:
    """Which plan is best; or that none is feasible, and what came nearest."""
    top = state.best
    if top is None:
        return _nothing_feasible(state)
    assert isinstance(top.outcome, Measured)
    memory = top.outcome.memory
    return (
        f"trial {top.number} is best{_by(state)} ({plan_words(top.plan)}):"
        f" {spread(top.outcome.samples_per_second)} samples/s, peak"
        f" {gib(memory.peak_bytes)} GiB, {100 * memory.share:.0f} % of the limit"
    )


def _by(state: SweepState) -> str:
    """By what, where it is not speed."""
    metric, top = state.goal.metric, state.best
    reached = None if top is None else state.goal.value(top)
    match metric:
        case "samples_per_price" if reached is not None:
            return f" by price, with {spread(reached)} {WORDS[metric]}"
        case "headroom":
            return " by the memory that it leaves free"
        case _:
            return ""


def _nothing_feasible(state: SweepState) -> str:
    headroom = state.spec.objective.headroom
    if not state.records:
        return "no trial has ended yet"
    if failed := all_failed(state):
        return failed
    near = nearest(state.records, headroom)
    if near is None:
        return "no plan is feasible, and no trial could tell how much memory it wanted"
    if short := short_of_goal(state):
        return f"no plan is feasible; {short}"
    excess = over_the_line(near, headroom) or 0.0
    return (
        f"no plan is feasible; nearest is trial {near.number}, {100 * excess:.0f} % over the"
        f" line ({plan_words(near.plan)}): {outcome_words(near.outcome)}"
    )


def all_failed(state: SweepState) -> str:
    """That no feasible plan stood its proof, and why; empty if there was none, or one did."""
    if state.best is not None or best(state.records, state.goal) is None:
        return ""
    told = "; ".join(
        f"the proof of trial {number} failed: {' '.join(reason.split())}"
        for number, reason in state.failed_proofs.items()
    )
    return f"no plan that keeps the head-room stood its proof ({told})"


def short_of_goal(state: SweepState) -> str:
    """What the fastest plan that keeps the head-room fails to reach; empty if there is none."""
    goal = state.goal
    near = best(state.records, replace(goal, metric="samples_per_second", least=()))
    short = None if near is None else next(goal.shortfalls(near), None)
    if near is None or short is None:
        return ""
    return f"nearest is trial {near.number} ({plan_words(near.plan)}), but {short}"


def speedup_sentence(state: SweepState) -> str:
    """How much faster the best plan is than the one that a user would start with.

    Says so where that plan was not measured, and why.
    """
    words = plan_words(state.space.baseline)
    start = f"the plan that a user would start with ({words})"
    top, baseline = state.best, baseline_record(state)
    if baseline is None:
        return f"no speed-up to tell: {start} was not tried"
    if not isinstance(baseline.outcome, Measured):
        return f"no speed-up to tell, {start} did not run: {outcome_words(baseline.outcome)}"
    if top is not None and top.plan == state.space.baseline:
        return f"nothing tried beats {start}"
    gain = speedup(top, baseline)
    if gain is None:
        return f"no speed-up to tell against {start}"
    note = ""
    if not keeps_headroom(baseline.outcome.memory, state.spec.objective.headroom):
        note = ", which goes over the line itself"
    return f"{gain.value:.2f} x ({gain.low:.2f} to {gain.high:.2f}) the speed of {start}{note}"


def left_sentence(state: SweepState) -> str:
    """What the sweep left on the table; empty if nobody can say."""
    ended = state.ended
    if ended is None or ended.left is None or state.best is None or not ended.untried:
        return ""
    return (
        f"left on the table: none of the {plural(ended.untried, 'untried plan')}"
        f" {_better_by(ended.left, state.goal.metric)}, with 95 % by what forecasts and trials tell"
    )


def _better_by(ratio: float, metric: Metric) -> str:
    more = 100 * (ratio - 1)
    match metric:
        case "samples_per_second":
            return f"is more than {more:.1f} % faster"
        case "samples_per_price":
            return f"gives more than {more:.1f} % more samples per unit of price"
        case "headroom":
            return f"has a peak more than {more / ratio:.1f} % lower"


def equals_sentence(state: SweepState) -> str:
    """Which of the plans that equal the best one is to be preferred; empty if none equals it."""
    equal = state.equals
    if len(equal) < 2:
        return ""
    numbers = [str(record.number) for record in sorted(equal, key=lambda one: one.number)]
    named = ", ".join(numbers[:_NAMED]) + (", ..." if len(numbers) > _NAMED else "")
    told = f"= statistically equal to the best ({len(equal)} plans in all, trials {named})"
    first = equal[0]
    if first == max(equal, key=lambda record: score(record, state.goal)):
        return told
    if state.goal.metric == "headroom":
        return f"{told}; trial {first.number} is the fastest, {throughput(first):.4g} samples/s"
    used = 100 * _share(first)
    return (
        f"{told}; trial {first.number} leaves the most memory free, {used:.0f} % of the limit used"
    )


def _share(record: Record) -> float:
    return record.outcome.memory.share if isinstance(record.outcome, Measured) else 1.0


def lossy_sentence(state: SweepState) -> str:
    """That the best plan changes the numerics, and what is best without; empty if it does not."""
    top = state.best
    if top is None or not (lossy := lossy_words(top.plan, state.spec)):
        return ""
    kept = [record for record in state.records if not lossy_words(record.plan, state.spec)]
    lossless = best(kept, state.goal)
    train = state.spec.train
    told = (
        f"lossy: it trains with {lossy} where train asks for {train.optimizer} in {train.precision}"
    )
    if lossless is None or not isinstance(lossless.outcome, Measured):
        return f"{told}; no lossless plan is feasible"
    rate = spread(lossless.outcome.samples_per_second)
    words = plan_words(lossless.plan)
    return f"{told}; the best lossless plan is trial {lossless.number} ({words}): {rate} samples/s"


def compile_sentence(state: SweepState) -> str:
    """What `torch.compile` took, which no plan's speed counts; empty if nothing was compiled."""
    seconds = {
        record.number: record.outcome.costs.compile_seconds
        for record in state.records
        if isinstance(record.outcome, Measured) and record.outcome.costs.compile_seconds > 0
    }
    if not seconds:
        return ""
    took, trials = duration(sum(seconds.values())), plural(len(seconds), "trial")
    told = f"torch.compile took {took} in {trials}"
    if state.best is not None and state.best.number in seconds:
        told += f", {duration(seconds[state.best.number])} of it for the best plan"
    return f"{told}; samples/s leave it out"


def forecast_sentence(state: SweepState) -> str:
    """How far forecasts were off, and would have been without the study's own records.

    Medians over the measured trials that had one; empty if none had.
    """
    found = [
        wrong for record in state.records if (wrong := errors(record.forecast, record.outcome))
    ]
    if not found:
        return ""
    speed = _off([one.speed for one in found], [one.unlearned_speed for one in found])
    memory = _off([one.memory for one in found], [one.unlearned_memory for one in found])
    told = f"forecasts of {plural(len(found), 'trial')} were off by {speed} in speed"
    told += f" and {memory} in peak memory" if memory else ""
    return f"{told}: medians, in brackets without what the study's own trials had taught"


def _off(now: Iterable[float | None], unlearned: Iterable[float | None]) -> str:
    sizes, without = (
        [abs(error) for error in given if error is not None] for given in (now, unlearned)
    )
    if not sizes:
        return ""
    return f"{100 * statistics.median(sizes):.0f} % ({100 * statistics.median(without):.0f} %)"


def budget_sentence(state: SweepState) -> str:
    """How long the trials took, for a study that is read rather than run; empty without any."""
    if not state.records:
        return ""
    first = min(record.started_at for record in state.records)
    last = max(record.ended_at for record in state.records)
    return f"first trial to last: {duration(last - first)}"
