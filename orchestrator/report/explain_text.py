"""Explanations for a terminal or a log."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
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
from search_spaces.trial import Estimate

_TOLD = 3  # terms or phases of a step
_LEAST = 0.01  # of a step, from which on a change of a term is told
_INDENT = (0, 0, 0, 2)


def value_words(value: object) -> str:
    """A knob's value as a specification has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def change_words(changes: Sequence[Change]) -> str:
    """`micro_batch 4 in place of 1, batching packed in place of padded`."""
    return ", ".join(
        f"{one.knob} {value_words(one.ours)} in place of {value_words(one.theirs)}"
        for one in changes
    )


def ratio_words(ratio: Estimate) -> str:
    """`1.43 x (1.12 to 1.74)`."""
    return f"{ratio.value:.2f} x ({ratio.low:.2f} to {ratio.high:.2f})"


def room_sentence(won: BestExplanation) -> str:
    """How much memory the winner leaves."""
    left, line = won.limit_bytes - won.peak_bytes, won.line_bytes - won.peak_bytes
    return (
        f"its peak of {gib(won.peak_bytes)} GiB leaves {gib(left)} of {gib(won.limit_bytes)} GiB a"
        f" rank free, {100 * left / won.limit_bytes:.0f} %, and"
        f" {gib(line)} GiB below the line that the headroom draws"
    )


def competitor_sentence(incumbent: Competitor) -> str:
    """The winner against one plan: `1.43 x (1.12 to 1.74) its speed, measured`."""
    if incumbent.ratio is None:
        return f"no speed to compare: {incumbent.outcome or 'it was not tried'}"
    known = "measured" if incumbent.measured else "by forecast"
    if not incumbent.measured and incumbent.outcome:
        known += f"; its trial: {incumbent.outcome}"
    equal = "; statistically equal" if incumbent.equal else ""
    return f"the winner has {ratio_words(incumbent.ratio)} its speed ({known}){equal}"


def time_sentences(incumbent: Competitor) -> Iterator[str]:
    """What shrank of a step, measured by phase and forecast by term."""
    if incumbent.phases:
        ours = sum(seconds for _, seconds, _ in incumbent.phases)
        theirs = sum(seconds for _, _, seconds in incumbent.phases)
        said = _saved(incumbent.phases, lambda name: name)
        yield f"measured, a step takes {_ms(ours)} in place of {_ms(theirs)}: {said}"
    if incumbent.terms:
        yield f"by forecast: {_saved(incumbent.terms, term_words)}"


def _saved(seconds: Seconds, words: Callable[[str], str]) -> str:
    whole = sum(theirs for _, _, theirs in seconds)
    order = sorted(seconds, key=lambda each: each[1] - each[2])
    less = [each for each in order if each[2] - each[1] > _LEAST * whole][:_TOLD]
    more = [each for each in reversed(order) if each[1] - each[2] > _LEAST * whole][:_TOLD]
    told = [f"{words(name)} {_ms(theirs - ours)} less" for name, ours, theirs in less]
    told += [f"{words(name)} {_ms(ours - theirs)} more" for name, ours, theirs in more]
    return ", ".join(told) or "no part differs by more than 1 %"


def _ms(seconds: float) -> str:
    return f"{significant(1e3 * seconds)} ms"


def effect_words(worth: KnobEffect) -> tuple[str, str, str]:
    """Speed, memory, and who says so."""
    if worth.ratio is None:
        if worth.trial is None:
            return "-", "-", "no legal plan differs in it alone"
        return "-", "-", f"trial {worth.trial}: {KIND_WORDS.get(worth.told, worth.told)}"
    more = worth.peak_bytes or 0.0
    peak = f"{'-' if more < 0 else '+'}{gib(abs(more))}"
    known = "forecast" if worth.trial is None else f"trial {worth.trial}"
    return ratio_words(worth.ratio), peak, known


def trial_sentences(fate: TrialExplanation) -> Iterator[str]:
    """How a trial ended, and what that means."""
    yield f"it was tried because: {fate.why}"
    if (told := fate.forecast) is not None:
        yield (
            f"before it, {significant(told.samples_per_second.value)} samples/s were forecast"
            f" ({significant(told.samples_per_second.low)} to"
            f" {significant(told.samples_per_second.high)}), with a peak of"
            f" {gib(told.peak_bytes.value)} GiB ({gib(told.peak_bytes.low)} to"
            f" {gib(told.peak_bytes.high)}); fits with {100 * told.fits:.0f} %"
        )
    if fate.place is not None:
        yield f"of the plans that keep what is asked it is number {fate.place}"
    yield from fate.reasons
    if fate.ratio is not None:
        yield f"it has {ratio_words(fate.ratio)} the speed of trial {fate.winner}, the answer"
    if fate.snapshot is not None:
        yield (
            f"torch's snapshot of the memory that ran out: {fate.snapshot}, which"
            " https://pytorch.org/memory_viz shows (a pickle: load none that you did not make)"
        )
    if fate.changes:
        yield f"trial {fate.winner}, the answer, has {change_words(fate.changes)}"


def shortage_sentences(short: Shortage) -> Iterator[str]:
    """What was wanted against the limit."""
    limit = gib(short.limit_bytes)
    if short.wanted_bytes is not None:
        over = short.wanted_bytes - short.limit_bytes
        beyond = f", {gib(over)} too much" if over > 0 else ""
        yield f"wanted at least {gib(short.wanted_bytes)} GiB{beyond}; the limit is {limit} GiB"
    else:
        yield f"the limit is {limit} GiB; the allocator did not say how much was wanted"
    if short.forecast is None:
        yield "nothing is forecast for it: it is not legal any more"
        return
    low, high = gib(short.forecast.low), gib(short.forecast.high)
    peak = gib(short.forecast.value)
    yield f"after all trials of the study its peak is forecast at {peak} GiB ({low} to {high})"
    if short.factor > 1:
        yield (
            f"that is {100 * (1 - 1 / short.factor):.0f} % less than was wanted: peaks of other"
            f" plans are taken as {short.factor:.2f} x their forecast below"
        )


def fixes_sentence(short: Shortage) -> str:
    """How many single changes there are, and what is known of them."""
    measured = sum(one.trial is not None for one in short.remedies)
    forecast = len(short.remedies) - measured
    return (
        f"{plural(short.tried, 'legal plan')} with one other knob; of the values, {measured}"
        f" measured to fit and {forecast} likely to by forecast; {plural(short.ran_out, 'plan')}"
        " ran out of memory too, or may need no less than one that did"
    )


def fix_words(remedy: OomFix) -> tuple[str, str, str, str, str]:
    """Change, forecast speed, measured speed, peak, and who says that it fits."""
    change = remedy.change
    fits = f"{100 * remedy.fits:.0f} %" if remedy.trial is None else f"trial {remedy.trial}"
    peak = gib(remedy.peak_bytes) + ("" if remedy.keeps else " (over the line)")
    return (
        f"{change.knob} {value_words(change.theirs)}",
        significant(remedy.samples_per_second.value),
        "-" if remedy.measured is None else spread(remedy.measured),
        peak,
        fits,
    )


def render_best(won: BestExplanation) -> RenderableType:
    """Why the winner won."""
    parts = [*_head(won.study, won.answer, won.note), Text(room_sentence(won))]
    if won.lossy:
        parts.append(Text(won.lossy, "yellow"))
    for rival in won.rivals:
        if rival.role == "baseline":
            parts += _against(rival)
    others = [rival for rival in won.rivals if rival.role == "runner-up"]
    if others:
        parts += _section("Against the runners-up", _rivals_table(others))
    return Group(*parts)


def _against(incumbent: Competitor) -> Iterator[RenderableType]:
    name = "not tried" if incumbent.trial is None else f"trial {incumbent.trial}"
    told: list[RenderableType] = [Text(competitor_sentence(incumbent), "bold")]
    if incumbent.knob_effects:
        told.append(_worths_table(incumbent.knob_effects))
        told.append(
            Text("worth: the winner over the plan that differs in this knob alone; knobs interact")
        )
    told += map(Text, time_sentences(incumbent))
    words = plan_words(incumbent.plan) + lossy_label(incumbent.lossy)
    yield from _section(f"Against the plan one would start with: {words} ({name})", *told)


def _worths_table(knob_effects: Sequence[KnobEffect]) -> Table:
    made = table(
        ("knob", False),
        ("winner", False),
        ("there", False),
        ("worth in speed", True),
        ("peak GiB", True),
        ("known by", False),
    )
    for worth in knob_effects:
        change = worth.change
        made.add_row(
            change.knob,
            Text(value_words(change.ours)),
            Text(value_words(change.theirs)),
            *map(Text, effect_words(worth)),
        )
    return made


def _rivals_table(rivals: Sequence[Competitor]) -> Table:
    made = table(
        ("trial", True),
        ("the winner's speed over it", True),
        ("", False),
        ("peak GiB", True),
        ("the winner has", False),
    )
    for rival in rivals:
        made.add_row(
            str(rival.trial),
            "-" if rival.ratio is None else ratio_words(rival.ratio),
            "equal" if rival.equal else "",
            "-" if rival.peak_bytes is None else gib(rival.peak_bytes),
            Text(change_words(rival.changes) + lossy_label(rival.lossy)),
        )
    return made


def render_trial(fate: TrialExplanation) -> RenderableType:
    """What happened to a trial."""
    words = plan_words(fate.plan) + lossy_label(fate.lossy)
    title = f"trial {fate.trial}, {words}: {fate.outcome}"
    parts = [*_head(fate.study, title, fate.note), *map(Text, trial_sentences(fate))]
    if fate.shortage is not None:
        parts += _shortage(fate.shortage)
    if fate.trace:
        parts += _section("Traceback", Text(fate.trace.rstrip()))
    return Group(*parts)


def _shortage(short: Shortage) -> Iterator[RenderableType]:
    told: list[RenderableType] = [*map(Text, shortage_sentences(short))]
    if short.held_bytes:
        told.append(_held_table(short))
    yield from _section("Memory", *told)
    told = [Text(fixes_sentence(short))]
    if short.remedies:
        told.append(_remedies_table(short))
    yield from _section("Single changes that would have made it fit", *told)


def _held_table(short: Shortage) -> Table:
    made = table(("holds, by forecast", False), ("GiB", True), ("of the limit", True))
    for name, held in sorted(short.held_bytes, key=lambda each: -each[1]):
        if held:
            made.add_row(category_words(name), gib(held), percent(held / short.limit_bytes))
    return made


def _remedies_table(short: Shortage) -> Table:
    made = table(
        ("change to", False),
        ("samples/s by forecast", True),
        ("measured", True),
        ("peak GiB", True),
        ("fits", True),
    )
    for remedy in short.remedies:
        made.add_row(*map(Text, fix_words(remedy)))
    return made


def render_untried(untried: UntriedExplanation) -> RenderableType:
    """Why a plan was not tried."""
    words = "no such plan" if untried.plan is None else plan_words(untried.plan)
    words += lossy_label(untried.lossy)
    verdict = untried.verdict.replace("_", " ")
    parts = _head(untried.study, f"{words}: {verdict}", "")
    if untried.changes:
        like = "the winner" if untried.like is None else f"trial {untried.like}"
        parts.append(Text(f"{like} has {change_words(untried.changes)}"))
    parts += [Text(reason) for reason in untried.reasons]
    if (told := untried.expected) is not None:
        parts.append(
            Text(
                f"forecast: {significant(told.samples_per_second.value)} samples/s"
                f" ({interval(told.samples_per_second)}), peak {gib(told.peak_bytes.value)} GiB"
                f" ({gib(told.peak_bytes.low)} to {gib(told.peak_bytes.high)}), fits with"
                f" {percent(told.fits)}"
            )
        )
    return Group(*parts)


def _head(study: str, title: str, note: str) -> list[RenderableType]:
    parts: list[RenderableType] = [
        Rule(Text(f"plimsoll explain {study}"), align="left"),
        Text(title, "bold"),
    ]
    if note:
        parts.append(Text(f"note: nothing is forecast: {note}", "yellow"))
    return parts


def _section(title: str, *content: RenderableType) -> Iterator[RenderableType]:
    yield Text(f"\n{title}", "bold cyan")
    for part in content:
        yield Padding(part, _INDENT, expand=False)
