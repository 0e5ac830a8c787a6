"""Explanations as text for a terminal or a log."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from orchestrator.explain.effects import Change, KnobEffect
from orchestrator.explain.trial import OomFix, Shortage, TrialExplanation
from orchestrator.explain.untried import UntriedExplanation
from orchestrator.explain.winner import BestExplanation, Competitor, Seconds
from orchestrator.report.format import gib, plural, spread
from orchestrator.report.labels import KIND_WORDS, lossy_label, plan_words
from orchestrator.report.plan_tables import table
from orchestrator.report.plan_text import category_words, interval, percent, significant, term_words
from orchestrator.report.sweep_tables import section
from search_spaces.trial import Estimate

_MOST_PARTS = 3  # terms or phases of a step, per direction
_SMALLEST = 0.01  # share of a step from which on a change is listed


def value_words(value: object) -> str:
    """Formats the value of a knob as in a specification."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def change_words(changes: Sequence[Change]) -> str:
    """Formats changes: `micro_batch 4 instead of 1, batching packed instead of padded`."""
    return ", ".join(
        f"{one.knob} {value_words(one.ours)} instead of {value_words(one.theirs)}"
        for one in changes
    )


def ratio_words(ratio: Estimate) -> str:
    """Formats a ratio with its interval: `1.43 x (1.12 to 1.74)`."""
    return f"{ratio.value:.2f} x ({ratio.low:.2f} to {ratio.high:.2f})"


def free_memory_sentence(explanation: BestExplanation) -> str:
    """Reports the memory that the best plan leaves free."""
    peak, limit = explanation.peak_bytes, explanation.limit_bytes
    free, unused = limit - peak, explanation.line_bytes - peak
    return (
        f"its peak of {gib(peak)} GiB leaves {gib(free)} of {gib(limit)} GiB per rank free,"
        f" {100 * free / limit:.0f} %, which is {gib(unused)} GiB more than the headroom"
    )


def competitor_sentence(competitor: Competitor) -> str:
    """Compares the speed of the best plan with one competitor."""
    if competitor.ratio is None:
        return f"no speed comparison: {competitor.outcome or 'it was not run'}"
    source = "measured" if competitor.measured else "forecast"
    if not competitor.measured and competitor.outcome:
        source += f"; its trial: {competitor.outcome}"
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
        return "-", "-", f"trial {effect.trial}: {KIND_WORDS.get(effect.told, effect.told)}"
    more = effect.peak_bytes or 0.0
    peak = f"{'-' if more < 0 else '+'}{gib(abs(more))}"
    source = "forecast" if effect.trial is None else f"trial {effect.trial}"
    return ratio_words(effect.ratio), peak, source


def trial_sentences(trial: TrialExplanation) -> Iterator[str]:
    """Explains a trial: why it was tried, its forecast, its rank and its distance to the best."""
    yield f"it was tried because: {trial.why}"
    if (forecast := trial.forecast) is not None:
        rate, peak = forecast.samples_per_second, forecast.peak_bytes
        yield (
            f"forecast before it ran: {significant(rate.value)} samples/s"
            f" ({significant(rate.low)} to {significant(rate.high)}), peak {gib(peak.value)} GiB"
            f" ({gib(peak.low)} to {gib(peak.high)}), {100 * forecast.fits:.0f} % likely to fit"
        )
    if trial.place is not None:
        yield f"rank {trial.place} among feasible plans"
    yield from trial.reasons
    if trial.ratio is not None:
        yield f"it has {ratio_words(trial.ratio)} the speed of the best plan, trial {trial.winner}"
    if trial.snapshot is not None:
        yield (
            f"PyTorch's memory snapshot from when it ran out: {trial.snapshot}; view it on"
            " https://pytorch.org/memory_viz (it is a pickle: load only files that you made)"
        )
    if trial.changes:
        yield f"the best plan, trial {trial.winner}, has {change_words(trial.changes)}"


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
    measured = sum(fix.trial is not None for fix in shortage.remedies)
    forecast = len(shortage.remedies) - measured
    return (
        f"{plural(shortage.tried, 'valid plan')} with one knob changed; {measured} of the values"
        f" measured to fit and {forecast} forecast to fit; {plural(shortage.ran_out, 'plan')} also"
        " ran out of memory, or may need at least as much as one that did"
    )


def fix_words(fix: OomFix) -> tuple[str, str, str, str, str]:
    """Returns the cells of a fix: change, forecast speed, measured speed, peak, evidence."""
    change = fix.change
    fits = f"{100 * fix.fits:.0f} %" if fix.trial is None else f"trial {fix.trial}"
    peak = gib(fix.peak_bytes) + ("" if fix.keeps else " (over usable memory)")
    return (
        f"{change.knob} {value_words(change.theirs)}",
        significant(fix.samples_per_second.value),
        "-" if fix.measured is None else spread(fix.measured),
        peak,
        fits,
    )


def render_best(explanation: BestExplanation) -> RenderableType:
    """Renders the explanation of the best plan."""
    parts = [
        *_head(explanation.study, explanation.answer, explanation.note),
        Text(free_memory_sentence(explanation)),
    ]
    if explanation.lossy:
        parts.append(Text(explanation.lossy, "yellow"))
    for competitor in explanation.rivals:
        if competitor.role == "baseline":
            parts += _against_baseline(competitor)
    runners_up = [one for one in explanation.rivals if one.role == "runner-up"]
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
    words = plan_words(baseline.plan) + lossy_label(baseline.lossy)
    yield from section(f"Against the baseline: {words} ({trial})", *parts)


def _effects_table(knob_effects: Sequence[KnobEffect]) -> Table:
    grid = table(
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
            Text(value_words(change.ours)),
            Text(value_words(change.theirs)),
            *map(Text, effect_words(effect)),
        )
    return grid


def _runners_up_table(runners_up: Sequence[Competitor]) -> Table:
    grid = table(
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
            Text(change_words(runner_up.changes) + lossy_label(runner_up.lossy)),
        )
    return grid


def render_trial(trial: TrialExplanation) -> RenderableType:
    """Renders the explanation of a trial."""
    words = plan_words(trial.plan) + lossy_label(trial.lossy)
    title = f"trial {trial.trial}, {words}: {trial.outcome}"
    parts = [*_head(trial.study, title, trial.note), *map(Text, trial_sentences(trial))]
    if trial.shortage is not None:
        parts += _shortage(trial.shortage)
    if trial.trace:
        parts += section("Traceback", Text(trial.trace.rstrip()))
    return Group(*parts)


def _shortage(shortage: Shortage) -> Iterator[RenderableType]:
    memory: list[RenderableType] = [*map(Text, shortage_sentences(shortage))]
    if shortage.held_bytes:
        memory.append(_categories_table(shortage))
    yield from section("Memory", *memory)
    fixes: list[RenderableType] = [Text(fixes_sentence(shortage))]
    if shortage.remedies:
        fixes.append(_fixes_table(shortage))
    yield from section("Single-knob changes that would fit", *fixes)


def _categories_table(shortage: Shortage) -> Table:
    grid = table(("forecast by category", False), ("GiB", True), ("share of limit", True))
    for name, size in sorted(shortage.held_bytes, key=lambda each: -each[1]):
        if size:
            grid.add_row(category_words(name), gib(size), percent(size / shortage.limit_bytes))
    return grid


def _fixes_table(shortage: Shortage) -> Table:
    grid = table(
        ("change to", False),
        ("forecast samples/s", True),
        ("measured", True),
        ("peak GiB", True),
        ("fits", True),
    )
    for fix in shortage.remedies:
        grid.add_row(*map(Text, fix_words(fix)))
    return grid


def render_untried(untried: UntriedExplanation) -> RenderableType:
    """Renders the explanation of a plan that was not tried."""
    words = "no such plan" if untried.plan is None else plan_words(untried.plan)
    words += lossy_label(untried.lossy)
    verdict = untried.verdict.replace("_", " ")
    parts = _head(untried.study, f"{words}: {verdict}", "")
    if untried.changes:
        like = "the best plan" if untried.like is None else f"trial {untried.like}"
        parts.append(Text(f"{like} has {change_words(untried.changes)}"))
    parts += [Text(reason) for reason in untried.reasons]
    if (forecast := untried.expected) is not None:
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
