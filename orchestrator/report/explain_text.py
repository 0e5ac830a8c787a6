"""Explanations as text for a terminal or a log."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from orchestrator.core.state import SweepState
from orchestrator.explain.effects import Change, KnobEffect
from orchestrator.explain.trial import OomFix, Shortage, TrialExplanation
from orchestrator.explain.untried import (
    AlreadyTried,
    CombinationNotSearched,
    ForecastSpeed,
    MayNotFit,
    NeedsNoLess,
    RuledOut,
    SweepOver,
    UntriedExplanation,
    UntriedReason,
    ValueNotSearched,
)
from orchestrator.explain.winner import BestExplanation, Competitor, Seconds
from orchestrator.report.format import gib, number, plural, spread, value_words
from orchestrator.report.labels import (
    KIND_WORDS,
    lossy_suffix,
    outcome_words,
    plan_words,
    validation_words,
    violation_words,
)
from orchestrator.report.plan_text import category_words, interval, percent, significant, term_words
from orchestrator.report.reasons import reason_words, stop_words
from orchestrator.report.sweep_tables import plain_table, section
from orchestrator.report.sweep_text import best_sentence, lossy_sentence
from search_spaces.trial import Crashed, Estimate, Outcome, OutOfMemory

_MOST_PARTS = 3  # terms or phases of a step, per direction
_SMALLEST = 0.01  # share of a step from which on a change is listed


def change_words(changes: Sequence[Change]) -> str:
    """Formats changes: `micro_batch 4 instead of 1, batching packed instead of padded`."""
    return ", ".join(
        f"{one.knob} {value_words(one.value)} instead of {value_words(one.other_value)}"
        for one in changes
    )


def ratio_words(ratio: Estimate) -> str:
    """Formats a ratio with its interval: `1.43 x (1.12 to 1.74)`."""
    return f"{ratio.value:.2f} x ({ratio.low:.2f} to {ratio.high:.2f})"


def free_memory_sentence(explanation: BestExplanation) -> str:
    """Reports the memory that the best plan leaves free."""
    peak, limit = explanation.peak_bytes, explanation.limit_bytes
    free, unused = limit - peak, explanation.usable_bytes - peak
    return (
        f"its peak of {gib(peak)} GiB leaves {gib(free)} of {gib(limit)} GiB per rank free,"
        f" {100 * free / limit:.0f} %, which is {gib(unused)} GiB more than the headroom"
    )


def competitor_sentence(competitor: Competitor) -> str:
    """Compares the speed of the best plan with one competitor."""
    if competitor.ratio is None:
        outcome = competitor.outcome
        ended = "it was not run" if outcome is None else outcome_words(outcome)
        return f"no speed comparison: {ended}"
    source = "measured" if competitor.measured else "forecast"
    if not competitor.measured and competitor.outcome is not None:
        source += f"; its trial: {outcome_words(competitor.outcome)}"
    equal = "; statistically equal" if competitor.equal else ""
    return f"the best plan has {ratio_words(competitor.ratio)} its speed ({source}){equal}"


def time_sentences(competitor: Competitor) -> Iterator[str]:
    """Says which parts of a step got faster: measured by phase, forecast by term."""
    if competitor.phases:
        best = sum(seconds for _, seconds, _ in competitor.phases)
        other = sum(seconds for _, _, seconds in competitor.phases)
        parts = _saved(competitor.phases, lambda name: name)
        yield f"measured: a step takes {_ms(best)} instead of {_ms(other)} ({parts})"
    if competitor.terms:
        yield f"forecast: {_saved(competitor.terms, term_words)}"


def _saved(seconds: Seconds, words: Callable[[str], str]) -> str:
    whole = sum(other for _, _, other in seconds)
    order = sorted(seconds, key=lambda each: each[1] - each[2])
    less = [each for each in order if each[2] - each[1] > _SMALLEST * whole][:_MOST_PARTS]
    more = [each for each in reversed(order) if each[1] - each[2] > _SMALLEST * whole][:_MOST_PARTS]
    parts = [f"{words(name)} {_ms(other - best)} less" for name, best, other in less]
    parts += [f"{words(name)} {_ms(best - other)} more" for name, best, other in more]
    return ", ".join(parts) or "no part differs by more than 1 %"


def _ms(seconds: float) -> str:
    return f"{significant(1e3 * seconds)} ms"


def effect_words(effect: KnobEffect) -> tuple[str, str, str]:
    """Returns the cells of a knob effect: speed, memory and source."""
    if effect.ratio is None:
        if effect.trial is None:
            return "-", "-", "no valid plan differs in this knob alone"
        return "-", "-", f"trial {effect.trial}: {KIND_WORDS[effect.outcome_kind or 'measured']}"
    more = effect.peak_bytes or 0.0
    peak = f"{'-' if more < 0 else '+'}{gib(abs(more))}"
    source = "forecast" if effect.trial is None else f"trial {effect.trial}"
    return ratio_words(effect.ratio), peak, source


def trial_sentences(explanation: TrialExplanation, state: SweepState) -> Iterator[str]:
    """Explains a trial: why it was tried, its forecast, its rank and its distance to the best."""
    trial = explanation.trial
    yield f"it was tried because: {reason_words(trial.reason)}"
    if (forecast := trial.forecast) is not None:
        rate, peak = forecast.samples_per_second, forecast.peak_bytes
        yield (
            f"forecast before it ran: {significant(rate.value)} samples/s"
            f" ({significant(rate.low)} to {significant(rate.high)}), peak {gib(peak.value)} GiB"
            f" ({gib(peak.low)} to {gib(peak.high)}), {100 * forecast.fits:.0f} % likely to fit"
        )
    if explanation.rank is not None:
        yield f"rank {explanation.rank} among feasible plans"
    yield from standing_sentences(explanation, state)
    best = 0 if explanation.best is None else explanation.best.number
    if explanation.ratio is not None:
        yield f"it has {ratio_words(explanation.ratio)} the speed of the best plan, trial {best}"
    if explanation.snapshot is not None:
        yield (
            f"PyTorch's memory snapshot from when it ran out: {explanation.snapshot}; view it on"
            " https://pytorch.org/memory_viz (it is a pickle: load only files that you made)"
        )
    if explanation.changes:
        yield f"the best plan, trial {best}, has {change_words(explanation.changes)}"


def standing_sentences(explanation: TrialExplanation, state: SweepState) -> Iterator[str]:
    """Says why a trial is or is not the best plan."""
    trial, best = explanation.trial, explanation.best
    for validation in state.validations:
        if validation.number == trial.number:
            yield f"its validation {validation_words(validation, state)}"
    match explanation.standing:
        case "best":
            yield "it is the best plan"
        case "not_measured":
            yield from _unmeasured(trial.outcome)
        case "infeasible":
            yield from map(violation_words, state.objective.violations(trial))
        case "tied" if best is not None:
            validated = state.validated is not None and state.validated.number == best.number
            preferred = "was validated" if validated else "measured fastest"
            yield f"it is statistically equal to trial {best.number}, which {preferred}"
        case "worse" if best is not None:
            value, best_value = state.objective.value(trial), state.objective.value(best)
            if value is not None and best_value is not None:
                yield (
                    f"it reaches {_range(value)}, and trial {best.number} reaches"
                    f" {_range(best_value)}: the intervals do not overlap"
                )


def _range(estimate: Estimate) -> str:
    return f"{number(estimate.value)} ({number(estimate.low)} to {number(estimate.high)})"


def _unmeasured(outcome: Outcome) -> Iterator[str]:
    if isinstance(outcome, OutOfMemory) and outcome.where == "host":
        yield (
            "host memory ran out, not device memory; host memory used by loader processes,"
            " offloaded state and other work is not forecast"
        )
    elif isinstance(outcome, OutOfMemory) and outcome.wanted_bytes is None:
        yield "the allocator did not report how much memory it requested"


def shortage_sentences(shortage: Shortage) -> Iterator[str]:
    """Compares the memory that a trial wanted with the limit, and with its forecast."""
    limit = gib(shortage.limit_bytes)
    if shortage.wanted_bytes is not None:
        over = shortage.wanted_bytes - shortage.limit_bytes
        excess = f", {gib(over)} GiB too much" if over > 0 else ""
        yield f"wanted at least {gib(shortage.wanted_bytes)} GiB{excess}; the limit is {limit} GiB"
    else:
        yield f"the limit is {limit} GiB; the allocator did not report how much was wanted"
    if shortage.forecast is None:
        yield "it has no forecast, because the plan is no longer valid"
        return
    peak = shortage.forecast
    yield (
        f"calibrated on all trials of the study, its forecast peak is {gib(peak.value)} GiB"
        f" ({gib(peak.low)} to {gib(peak.high)})"
    )
    if shortage.factor > 1:
        yield (
            f"that is {100 * (1 - 1 / shortage.factor):.0f} % less than it wanted, so the forecast"
            f" peaks of other plans below are scaled by {shortage.factor:.2f}"
        )


def fixes_sentence(shortage: Shortage) -> str:
    """Counts the single-knob changes and those that are measured or forecast to fit."""
    measured = sum(fix.trial is not None for fix in shortage.fixes)
    forecast = len(shortage.fixes) - measured
    return (
        f"{plural(shortage.tried, 'valid plan')} with one knob changed; {measured} of the values"
        f" measured to fit and {forecast} forecast to fit; {plural(shortage.ran_out, 'plan')} also"
        " ran out of memory, or may need at least as much as one that did"
    )


def fix_words(fix: OomFix) -> tuple[str, str, str, str, str]:
    """Returns the cells of a fix: change, forecast speed, measured speed, peak, evidence."""
    change = fix.change
    fits = f"{100 * fix.fits:.0f} %" if fix.trial is None else f"trial {fix.trial}"
    peak = gib(fix.peak_bytes) + ("" if fix.keeps_headroom else " (over usable memory)")
    return (
        f"{change.knob} {value_words(change.other_value)}",
        significant(fix.samples_per_second.value),
        "-" if fix.measured is None else spread(fix.measured),
        peak,
        fits,
    )


def render_best(explanation: BestExplanation, state: SweepState) -> RenderableType:
    """Renders the explanation of the best plan."""
    parts = [
        *_head(explanation.study, best_sentence(state), explanation.note),
        Text(free_memory_sentence(explanation)),
    ]
    if lossy := lossy_sentence(state):
        parts.append(Text(lossy, "yellow"))
    for competitor in explanation.competitors:
        if competitor.role == "baseline":
            parts += _against_baseline(competitor)
    runners_up = [one for one in explanation.competitors if one.role == "runner-up"]
    if runners_up:
        parts += section("Against the runners-up", _runners_up_table(runners_up))
    return Group(*parts)


def _against_baseline(baseline: Competitor) -> Iterator[RenderableType]:
    trial = "not run" if baseline.trial is None else f"trial {baseline.trial}"
    parts: list[RenderableType] = [Text(competitor_sentence(baseline), "bold")]
    if baseline.knob_effects:
        note = "effect: the best plan over the plan that differs in this knob alone; knobs interact"
        parts += [_effects_table(baseline.knob_effects), Text(note)]
    parts += map(Text, time_sentences(baseline))
    words = plan_words(baseline.plan) + lossy_suffix(baseline.plan, baseline.lossy)
    yield from section(f"Against the baseline: {words} ({trial})", *parts)


def _effects_table(knob_effects: Sequence[KnobEffect]) -> Table:
    grid = plain_table(
        ("knob", False),
        ("best", False),
        ("baseline", False),
        ("effect on speed", True),
        ("peak GiB", True),
        ("source", False),
    )
    for effect in knob_effects:
        change = effect.change
        grid.add_row(
            change.knob,
            Text(value_words(change.value)),
            Text(value_words(change.other_value)),
            *map(Text, effect_words(effect)),
        )
    return grid


def _runners_up_table(runners_up: Sequence[Competitor]) -> Table:
    grid = plain_table(
        ("trial", True),
        ("speed of the best over it", True),
        ("", False),
        ("peak GiB", True),
        ("the best has", False),
    )
    for runner_up in runners_up:
        grid.add_row(
            str(runner_up.trial),
            "-" if runner_up.ratio is None else ratio_words(runner_up.ratio),
            "equal" if runner_up.equal else "",
            "-" if runner_up.peak_bytes is None else gib(runner_up.peak_bytes),
            Text(change_words(runner_up.changes) + lossy_suffix(runner_up.plan, runner_up.lossy)),
        )
    return grid


def render_trial(explanation: TrialExplanation, state: SweepState) -> RenderableType:
    """Renders the explanation of a trial."""
    trial = explanation.trial
    words = plan_words(trial.plan) + lossy_suffix(trial.plan, explanation.lossy)
    title = f"trial {trial.number}, {words}: {outcome_words(trial.outcome)}"
    parts = [
        *_head(explanation.study, title, explanation.note),
        *map(Text, trial_sentences(explanation, state)),
    ]
    if explanation.shortage is not None:
        parts += _shortage(explanation.shortage)
    if isinstance(trial.outcome, Crashed) and trial.outcome.trace:
        parts += section("Traceback", Text(trial.outcome.trace.rstrip()))
    return Group(*parts)


def _shortage(shortage: Shortage) -> Iterator[RenderableType]:
    memory: list[RenderableType] = [*map(Text, shortage_sentences(shortage))]
    if shortage.held_bytes:
        memory.append(_categories_table(shortage))
    yield from section("Memory", *memory)
    fixes: list[RenderableType] = [Text(fixes_sentence(shortage))]
    if shortage.fixes:
        fixes.append(_fixes_table(shortage))
    yield from section("Single-knob changes that would fit", *fixes)


def _categories_table(shortage: Shortage) -> Table:
    grid = plain_table(("forecast by category", False), ("GiB", True), ("share of limit", True))
    for name, size in sorted(shortage.held_bytes, key=lambda each: -each[1]):
        if size:
            grid.add_row(category_words(name), gib(size), percent(size / shortage.limit_bytes))
    return grid


def _fixes_table(shortage: Shortage) -> Table:
    grid = plain_table(
        ("change to", False),
        ("forecast samples/s", True),
        ("measured", True),
        ("peak GiB", True),
        ("fits", True),
    )
    for fix in shortage.fixes:
        grid.add_row(*map(Text, fix_words(fix)))
    return grid


def untried_words(reason: UntriedReason) -> str:
    """Describes a reason why a plan was not tried."""
    match reason:
        case AlreadyTried(trial=trial):
            return f"it was tried, as trial {trial}"
        case RuledOut(refused=refused):
            return f"{refused.detail} (rule: {refused.rule.replace('_', ' ')})"
        case ValueNotSearched(knob=knob, value=value, searched=searched):
            others = ", ".join(map(_value, searched))
            return f"space.{knob} does not include {_value(value)}, only {others}"
        case CombinationNotSearched():
            return (
                "each of its values is searched, but not this combination: the values of a knob"
                " depend on other knobs (docs/knobs.md); to search them, list them in space"
            )
        case NeedsNoLess(trial=trial):
            return f"trial {trial} ran out of memory, and this plan needs no less memory"
        case MayNotFit():
            return _memory_words(reason)
        case ForecastSpeed(ratio=ratio, best=best):
            unsure = "" if ratio.high < 1 or ratio.value >= 1 else ", so it may be as fast"
            return f"its forecast speed is {ratio_words(ratio)} that of trial {best}{unsure}"
        case SweepOver():
            return _end_words(reason)


def _end_words(reason: SweepOver) -> str:
    trials = plural(reason.trials, "trial")
    if reason.ended is None:
        return f"no end of the sweep is recorded; so far it has {trials}"
    ended = stop_words(reason.ended)
    return f"the sweep ended before this plan was reached, after {trials}: {ended}"


def _value(value: object) -> str:
    return value_words(value) or "none"


def _memory_words(reason: MayNotFit) -> str:
    needed, bound = reason.needed_bytes, gib(reason.bound_bytes)
    peak = f"its forecast peak is {gib(needed.value)} GiB ({gib(needed.low)} to {gib(needed.high)})"
    fits = f"{100 * reason.fits:.0f} % likely to fit"
    match reason.bound:
        case "host":
            return (
                f"it needs {gib(needed.value)} GiB of host memory per node, but {bound} GiB are"
                " usable"
            )
        case "limit":
            return f"{peak}, above the limit of {bound} GiB: {fits}"
        case "usable":
            return f"{peak}, above {bound} GiB, the limit minus the headroom: {fits}"
        case "certainty":
            return f"{peak}, too close to the limit of {bound} GiB: {fits}"


def render_untried(untried: UntriedExplanation) -> RenderableType:
    """Renders the explanation of a plan that was not tried."""
    words = "no such plan"
    if untried.plan is not None:
        words = plan_words(untried.plan) + lossy_suffix(untried.plan, untried.lossy)
    verdict = untried.verdict.replace("_", " ")
    parts = _head(untried.study, f"{words}: {verdict}", "")
    if untried.changes:
        like = "the best plan" if untried.like is None else f"trial {untried.like}"
        parts.append(Text(f"{like} has {change_words(untried.changes)}"))
    parts += [Text(untried_words(reason)) for reason in untried.reasons]
    if untried.expected is not None:
        forecast = untried.expected.forecast
        rate, peak = forecast.samples_per_second, forecast.peak_bytes
        parts.append(
            Text(
                f"forecast: {significant(rate.value)} samples/s ({interval(rate)}), peak"
                f" {gib(peak.value)} GiB ({gib(peak.low)} to {gib(peak.high)}),"
                f" {percent(forecast.fits)} likely to fit"
            )
        )
    return Group(*parts)


def _head(study: str, title: str, note: str) -> list[RenderableType]:
    parts: list[RenderableType] = [
        Rule(Text(f"plimsoll explain {study}"), align="left"),
        Text(title, "bold"),
    ]
    if note:
        parts.append(Text(f"note: there are no forecasts: {note}", "yellow"))
    return parts
