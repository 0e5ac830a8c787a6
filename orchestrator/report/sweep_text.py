"""What a sweep found, in sentences: the same for the report and for MLflow's description."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator
from dataclasses import replace

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.text import Text

from orchestrator.core.objective import WORDS, best, score, throughput, within_headroom
from orchestrator.core.state import SweepState
from orchestrator.report.format import duration, gib, plural, spread
from orchestrator.report.labels import (
    fixed_words,
    lossy_words,
    outcome_words,
    plan_words,
    validation_sentences,
)
from orchestrator.report.sweep_tables import (
    anatomy_table,
    baseline_record,
    best_table,
    ends_table,
    front_table,
    nearest,
    over_the_line,
    rules_table,
    speedup,
)
from search_spaces.spec.sections import Metric
from search_spaces.trial import Estimate, Measured, Record, errors

_NAMED = 12  # plans of one set that are told by number
_BESIDE = 0.5  # of a trial's time beside another one, from which on it counts as such
_INDENT = (0, 0, 0, 2)


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
    """That no feasible plan stood its validation, and why; empty if there was none, or one did."""
    if state.best is not None or best(state.records, state.goal) is None:
        return ""
    told = "; ".join(
        f"the validation of trial {number} failed: {' '.join(reason.split())}"
        for number, reason in state.failed_validations.items()
    )
    return f"no plan that keeps the headroom stood its validation ({told})"


def short_of_goal(state: SweepState) -> str:
    """What the fastest plan that keeps the headroom fails to reach; empty if there is none."""
    goal = state.goal
    near = best(state.records, replace(goal, metric="samples_per_second", lower_bounds=()))
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
    if not within_headroom(baseline.outcome.memory, state.spec.objective.headroom):
        note = ", which goes over the line itself"
    return f"{gain.value:.2f} x ({gain.low:.2f} to {gain.high:.2f}) the speed of {start}{note}"


def regret_sentence(state: SweepState) -> str:
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


def contention_sentence(state: SweepState) -> str:
    """Whether trials disturbed each other; empty if none ran beside another.

    Measured on the plans that were validated: their trials ran beside others, their validations
    alone.
    """
    if not any(_was_beside(record, state.records) for record in state.records):
        return ""
    found = [(validation, ratio) for validation, ratio in _ratios(state) if ratio is not None]
    if not found:
        return (
            "trials ran side by side; whether they disturbed each other is not known, for no plan"
            " of such a trial was validated alone"
        )
    validation, ratio = found[-1]
    told = f"{ratio.value:.2f} x ({ratio.low:.2f} to {ratio.high:.2f})"
    beside = f"alone, trial {validation.number}'s plan ran at {told} its speed beside other trials"
    if ratio.low > 1:
        return (
            f"trials disturbed each other: {beside}; cluster.groups: 1 measures one at a time, and"
            " cluster.share_nodes: false keeps them apart"
        )
    if ratio.high < 1:
        return f"trials did not slow each other down: {beside}, so that the machines have changed"
    return f"trials did not disturb each other beyond their intervals: {beside}"


def _ratios(state: SweepState) -> Iterator[tuple[Record, Estimate | None]]:
    for validation in state.validations:
        trial = next((r for r in state.records if r.number == validation.number), None)
        if trial is not None and _was_beside(trial, state.records):
            yield validation, _ratio(validation, trial)


def _was_beside(record: Record, others: tuple[Record, ...]) -> bool:
    took = record.ended_at - record.started_at
    shared = sum(
        max(min(record.ended_at, other.ended_at) - max(record.started_at, other.started_at), 0.0)
        for other in others
        if other.number != record.number
    )
    return took > 0 and shared >= _BESIDE * took


def _ratio(validation: Record, trial: Record) -> Estimate | None:
    if not (isinstance(validation.outcome, Measured) and isinstance(trial.outcome, Measured)):
        return None
    alone, beside = validation.outcome.samples_per_second, trial.outcome.samples_per_second
    ratio = alone.value / beside.value
    wide = math.hypot(alone.relative_half_width, beside.relative_half_width)
    return Estimate(value=ratio, low=ratio * max(1 - wide, 0.0), high=ratio * (1 + wide))


def render_report(state: SweepState, ui_command: str) -> RenderableType:
    """The best plans, how much faster they are, what failed and why, and where to look on.

    Args:
        state: The sweep, ended or rebuilt from its study.
        ui_command: The command that opens MLflow on it; empty if it is not tracked.
    """
    parts: list[RenderableType] = [Rule(Text(f"plimsoll {state.study}"), align="left")]
    parts += [Text(line) for line in _heading(state)]
    parts += _section("Answer", *(Text(line, "bold") for line in _answer(state)))
    if state.best is not None:
        parts += _section("Best plans", best_table(state), *map(Text, _legend(state)))
        if (several := front_table(state)) is not None:
            parts += _section("Front: none of these is beaten in all of its figures", several)
        parts += _section("Peak memory of the best plan", anatomy_table(state.best))
    if state.records:
        parts += _section("How the trials ended", ends_table(state))
    if state.space.ruled_out:
        parts += _section("Ruled out before any trial", rules_table(state))
    if ui_command:
        command = Text(ui_command, "bold", no_wrap=True, overflow="ignore")  # to be copied whole
        parts += _section("Compare the trials in MLflow", command)
    return Group(*parts)


def _section(title: str, *content: RenderableType) -> Iterator[RenderableType]:
    yield Text(f"\n{title}", "bold cyan")
    for part in content:
        yield Padding(part, _INDENT, expand=False)


def _heading(state: SweepState) -> Iterator[str]:
    spec = state.spec
    yield (
        f"{spec.model.name}: global batch {spec.train.global_batch}, sequence length"
        f" {spec.train.sequence_length}, {spec.train.optimizer}, {spec.train.precision}"
    )
    fingerprint = state.fingerprint or next(
        (record.fingerprint for record in reversed(state.records) if record.fingerprint), None
    )
    if fingerprint is not None:
        hosts = plural(fingerprint.hosts, "host")
        yield f"on {fingerprint.device} {fingerprint.device_name}, {hosts}"
    if state.resumed and state.resumed == len(state.records):
        yield f"{plural(len(state.records), 'trial')} of the study, none of them new"
    elif state.resumed:
        yield f"{plural(len(state.records), 'trial')}, {state.resumed} of them from earlier runs"
    else:
        yield plural(len(state.records), "trial")
    if state.ended is not None:
        took = duration(state.ended.at - state.started_at)
        yield f"ended after {took}: {state.ended.reason}"
    elif spent := budget_sentence(state):
        yield spent


def _answer(state: SweepState) -> Iterator[str]:
    yield answer(state)
    if state.best is not None:
        yield from validation_sentences(state)
        yield speedup_sentence(state)
        if lossy := lossy_sentence(state):
            yield lossy
        if beside := contention_sentence(state):
            yield beside
        if left := regret_sentence(state):
            yield left


def _legend(state: SweepState) -> Iterator[str]:
    headroom = state.spec.objective.headroom
    kinds = {record.plan.accelerator for record in state.records}
    limit = state.memory_limit_bytes if len(kinds) < 2 else None  # each has its own
    share = f"{100 * (1 - headroom):.0f} %"
    if limit:
        line = gib(limit * (1 - headroom))
        yield f"the line: {line} GiB, {share} of the limit of {gib(limit)} GiB per rank"
    else:
        yield f"the line: {share} of the limit"
    if common := fixed_words(state.space):
        yield f"all plans: {common}"
    if equal := equals_sentence(state):
        yield equal
    if compiling := compile_sentence(state):
        yield compiling
    if expected := forecast_sentence(state):
        yield expected
