"""Explanations in words."""

from collections.abc import Callable, Iterator

from orchestrator.core.state import SweepState
from orchestrator.explain.trial import OomFix, Shortage, TrialExplanation
from orchestrator.explain.untried import UntriedExplanation
from orchestrator.explain.winner import BaselineComparison, BestExplanation, Seconds
from orchestrator.report import labels
from orchestrator.report.format import (
    gib,
    number,
    plural,
    ratio_words,
    significant,
    spread,
    value_words,
)
from orchestrator.report.plan_text import forecast_sentence, memory_words, percent, term_words
from orchestrator.report.reasons import reason_words, stop_words
from orchestrator.report.sections import Code, Document, Section, Table
from orchestrator.report.sweep_tables import change_words, levers_blocks
from orchestrator.report.sweep_text import best_sentence, lossy_sentence
from search_spaces.trial import Crashed, Estimate, Outcome, OutOfMemory

Explanation = BestExplanation | TrialExplanation | UntriedExplanation
_MOST_PARTS = 3  # terms or phases of a step, per direction
_SMALLEST = 0.01  # share of a step from which on a change is listed


def baseline_sentence(baseline: BaselineComparison) -> str:
    """Compares the speed of the best plan with the baseline."""
    if baseline.ratio is None:
        outcome = baseline.outcome
        ended = "it was not run" if outcome is None else labels.outcome_words(outcome)
        return f"no speed comparison: {ended}"
    source = "measured" if baseline.measured else "forecast"
    if not baseline.measured and baseline.outcome is not None:
        source += f"; its trial: {labels.outcome_words(baseline.outcome)}"
    equal = "; statistically equal" if baseline.equal else ""
    return f"the best plan has {ratio_words(baseline.ratio)} its speed ({source}){equal}"


def time_sentences(baseline: BaselineComparison) -> Iterator[str]:
    """Says which parts of a step got faster: measured by phase, forecast by term."""
    if baseline.phases:
        best = sum(seconds for _, seconds, _ in baseline.phases)
        other = sum(seconds for _, _, seconds in baseline.phases)
        parts = _saved(baseline.phases, lambda name: name)
        yield f"measured: a step takes {_ms(best)} instead of {_ms(other)} ({parts})"
    if baseline.terms:
        yield f"forecast: {_saved(baseline.terms, term_words)}"


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


def trial_sentences(explanation: TrialExplanation, state: SweepState) -> Iterator[str]:
    """Explains a trial: why it was tried, its forecast, its rank and its distance to the best."""
    trial = explanation.trial
    if explanation.named_by_knobs:
        yield f"it was tried, as trial {trial.number}"
    yield f"it was tried because: {reason_words(trial.reason)}"
    if (forecast := trial.forecast) is not None:
        yield f"forecast before it ran: {forecast_sentence(forecast)}"
    if explanation.rank is not None:
        yield f"rank {explanation.rank} among feasible plans"
    yield from standing_sentences(explanation, state)
    best = 0 if explanation.best is None else explanation.best.number
    if explanation.ratio is not None:
        yield f"it has {ratio_words(explanation.ratio)} the speed of the best plan, trial {best}"
    if explanation.changes:
        yield f"the best plan, trial {best}, has {change_words(explanation.changes)}"


def standing_sentences(explanation: TrialExplanation, state: SweepState) -> Iterator[str]:
    """Says why a trial is or is not the best plan."""
    trial, best = explanation.trial, explanation.best
    for validation in state.validations:
        if validation.number == trial.number:
            yield f"its validation {labels.validation_words(validation, state)}"
    match explanation.standing:
        case "best":
            yield "it is the best plan"
        case "not_measured":
            yield from _unmeasured(trial.outcome)
        case "infeasible":
            yield from map(labels.violation_words, state.objective.violations(trial))
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


def untried_reasons(untried: UntriedExplanation, state: SweepState) -> Iterator[str]:
    """Yields the reasons why a plan was not tried; the end of the sweep comes last."""
    match untried.verdict:
        case "tried":
            yield f"it was tried, as trial {untried.trial}"
            return
        case "ruled_out":
            yield f"{untried.detail} (rule: {untried.rule.replace('_', ' ')})"
        case "dominated":
            yield f"trial {untried.trial} ran out of memory, and this plan needs no less memory"
        case "not_in_the_space" if not untried.not_searched:
            yield (
                "each of its values is searched, but not this combination: the values of a knob"
                " depend on other knobs (docs/knobs.md); to search them, list them in space"
            )
    for one in untried.not_searched:
        others = ", ".join(map(value_words, one.searched))
        yield f"space.{one.knob} does not include {value_words(one.value)}, only {others}"
    if untried.verdict == "forecast_not_to_fit" and untried.expected is not None:
        yield f"it {memory_words(untried.expected, untried)}"
    if untried.verdict in ("ruled_out", "not_in_the_space"):
        return
    if (ratio := untried.ratio) is not None and state.best is not None:
        unsure = "" if ratio.high < 1 or ratio.value >= 1 else ", so it may be as fast"
        best = state.best.number
        yield f"its forecast speed is {ratio_words(ratio)} that of trial {best}{unsure}"
    yield _end_words(state)


def _end_words(state: SweepState) -> str:
    trials = plural(len(state.records), "trial")
    if state.ended is None:
        return f"no end of the sweep is recorded; so far it has {trials}"
    ended = stop_words(state.ended.reason)
    return f"the sweep ended before this plan was reached, after {trials}: {ended}"


def explanation_text(explanation: Explanation, state: SweepState) -> Document:
    """Explains a best plan, a trial or an untried plan as a document."""
    note = "" if isinstance(explanation, UntriedExplanation) else explanation.note
    notes = [f"there are no forecasts: {note}"] if note else []
    match explanation:
        case BestExplanation():
            headline, sections = best_sentence(state), _best_sections(explanation, state)
            notes.append(lossy_sentence(state))
        case TrialExplanation(trial=trial):
            words = labels.labelled_plan(trial.plan, state.spec)
            headline = f"trial {trial.number}, {words}: {labels.outcome_words(trial.outcome)}"
            sections = _trial_sections(explanation, state)
        case UntriedExplanation(plan=plan):
            words = "no such plan" if plan is None else labels.labelled_plan(plan, state.spec)
            headline = f"{words}: {explanation.verdict.replace('_', ' ')}"
            sections = iter((Section(blocks=tuple(_untried_sentences(explanation, state))),))
    return Document(
        title=f"plimsoll explain {explanation.study}",
        headline=headline,
        notes=tuple(filter(None, notes)),
        sections=tuple(sections),
    )


def _best_sections(explanation: BestExplanation, state: SweepState) -> Iterator[Section]:
    if (baseline := explanation.baseline) is None:
        return
    trial = "not run" if baseline.trial is None else f"trial {baseline.trial}"
    plan = labels.labelled_plan(baseline.plan, state.spec)
    yield Section(
        title=f"Against the baseline: {plan} ({trial})",
        blocks=(
            baseline_sentence(baseline),
            *levers_blocks(baseline.levers),
            *time_sentences(baseline),
        ),
    )


def _trial_sections(explanation: TrialExplanation, state: SweepState) -> Iterator[Section]:
    yield Section(blocks=tuple(trial_sentences(explanation, state)))
    if (shortage := explanation.shortage) is not None:
        yield Section(title="Memory", blocks=tuple(shortage_sentences(shortage)))
        titles = ("change to", "#forecast samples/s", "#measured", "#peak GiB", "#fits")
        table = Table(titles=titles, rows=tuple(map(fix_words, shortage.fixes)))
        blocks: list[str | Table] = [fixes_sentence(shortage)] + [table] * bool(shortage.fixes)
        yield Section(title="Single-knob changes that would fit", blocks=tuple(blocks))
    outcome = explanation.trial.outcome
    if isinstance(outcome, Crashed) and outcome.trace:
        yield Section(title="Traceback", blocks=(Code(text=outcome.trace.rstrip()),))


def fix_words(fix: OomFix) -> tuple[str, str, str, str, str]:
    """Returns the cells of a fix: change, forecast speed, measured speed, peak, evidence."""
    return (
        f"{fix.change.knob} {value_words(fix.change.other_value)}",
        significant(fix.samples_per_second.value),
        "-" if fix.measured is None else spread(fix.measured),
        gib(fix.peak_bytes) + ("" if fix.keeps_headroom else " (over usable memory)"),
        percent(fix.fits) if fix.trial is None else f"trial {fix.trial}",
    )


def _untried_sentences(untried: UntriedExplanation, state: SweepState) -> Iterator[str]:
    if untried.changes:
        like = "the best plan" if untried.like is None else f"trial {untried.like}"
        yield f"{like} has {change_words(untried.changes)}"
    yield from untried_reasons(untried, state)
    if untried.expected is not None:
        yield f"forecast: {forecast_sentence(untried.expected.forecast)}"
