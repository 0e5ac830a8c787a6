"""Comparisons for a terminal or a log."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from orchestrator.explain.compare import (
    Agreement,
    Difference,
    Measurement,
    Pair,
    PlanComparison,
    Side,
    StudyComparison,
)
from orchestrator.report.explain_text import ratio_words, value_words
from orchestrator.report.format import gib, plural, spread
from orchestrator.report.labels import counts_words, lossy_label, plan_words
from orchestrator.report.plan_tables import table
from orchestrator.report.plan_text import common_knobs, common_words, significant
from search_spaces.trial import Estimate

_INDENT = (0, 0, 0, 2)
_PAIRS = 12


def render_plans(told: PlanComparison) -> RenderableType:
    """Two trials of one study."""
    first, second = told.first, told.second
    names = (f"trial {first.trial}", f"trial {second.trial}")
    parts: list[RenderableType] = [Rule(Text(f"plimsoll diff {told.study}"), align="left")]
    for side in (first, second):
        answer = ", the answer" if side.wins else ""
        words = plan_words(side.plan) + lossy_label(side.lossy)
        parts.append(Text(f"trial {side.trial}{answer}: {words}: {side.outcome}"))
    speeds = _verdict(told.ratio, told.rates_apart, names)
    parts += [Text(line, "bold") for line in (speeds, _peaks(told)) if line]
    if told.knobs:
        parts += _section("Knobs", _differing(told.knobs, names, value_words))
    else:
        parts.append(Text("the plans are one and the same"))
    if told.phases:
        parts += _section(
            "Seconds of a step, measured", _differing(told.phases, names, significant)
        )
    if told.anatomy:
        parts += _section("GiB at the peak, measured", _differing(told.anatomy, names, gib))
    return Group(*parts)


def _verdict(ratio: Estimate | None, apart: bool | None, names: tuple[str, str]) -> str:
    """How the second's speed compares with the first's."""
    if ratio is None:
        return "no speeds to compare: not both were measured"
    noise = "beyond noise" if apart else "not beyond noise: their intervals overlap"
    return f"{names[1]} has {ratio_words(ratio)} the speed of {names[0]}, {noise}"


def _peaks(told: PlanComparison) -> str:
    ours, theirs = told.first.peak_bytes, told.second.peak_bytes
    if ours is None or theirs is None:
        return ""
    more = theirs - ours
    noise = "beyond noise" if told.peaks_apart else "not beyond noise"
    word = "more" if more >= 0 else "less"
    return (
        f"trial {told.second.trial} holds {gib(abs(more))} GiB {word} at its peak, {gib(theirs)}"
        f" against {gib(ours)}, {noise}"
    )


def _differing(
    told: Sequence[Difference], names: tuple[str, str], words: Callable[[Any], str]
) -> Table:
    made = table(("", False), (names[0], False), (names[1], False))
    for one in told:
        sides = ("-" if side is None else words(side) for side in (one.first, one.second))
        made.add_row(Text(one.name + " (follows)" * one.follows), *map(Text, sides))
    return made


def render_studies(told: StudyComparison) -> RenderableType:
    """Two studies."""
    names = _names(told)
    parts: list[RenderableType] = [Rule(Text(f"plimsoll diff {names[0]} {names[1]}"), align="left")]
    for name, side in zip(names, (told.first, told.second), strict=True):
        parts += [Text(line) for line in _side(name, side)]
    if not told.same_job:
        parts.append(
            Text(
                "these are two jobs (model, data or train differ): speeds do not compare", "yellow"
            )
        )
    if told.ratio is not None:
        parts.append(Text(_verdict(told.ratio, told.rates_apart, _answers(names)), "bold"))
    parts += _sections(told, names)
    return Group(*parts)


def _sections(told: StudyComparison, names: tuple[str, str]) -> Iterator[RenderableType]:
    for title, differing, same in (
        ("Answers: knobs that differ", told.winners, "none: both answers are one plan"),
        ("Specification", told.specification, "no key differs"),
        ("Environment", told.environment, "the same device and software"),
    ):
        if title.startswith("Answers") and None in (told.first.best, told.second.best):
            continue
        content = _differing(differing, names, _any) if differing else Text(same)
        yield from _section(title, content)
    yield from _section("Plans that both have tried", *_common(told, names))


def _names(told: StudyComparison) -> tuple[str, str]:
    """The studies' names, told apart where they have one."""
    first, second = told.first.study, told.second.study
    return (f"{first} (A)", f"{second} (B)") if first == second else (first, second)


def _answers(names: tuple[str, str]) -> tuple[str, str]:
    return f"the answer of {names[0]}", f"the answer of {names[1]}"


def _side(name: str, side: Side) -> Iterator[str]:
    where = f" on {side.device}" if side.device else ""
    yield f"{name}: {plural(side.trials, 'trial')}{where}: {counts_words(dict(side.ended))}"
    if side.note:
        yield f"  note: {side.note}"
    best = side.best
    if best is None:
        yield "  it has no answer: no plan is feasible"
        return
    peak = "" if best.peak_bytes is None else f", peak {gib(best.peak_bytes)} GiB"
    words = plan_words(best.plan) + lossy_label(best.lossy)
    yield f"  answer: trial {best.trial}, {words}: {_speed(best)} samples/s{peak}"


def _speed(side: Measurement) -> str:
    return "-" if side.samples_per_second is None else spread(side.samples_per_second)


def _any(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list | tuple):
        return ", ".join(map(value_words, value)) or "nothing"
    return value_words(value)


def _common(told: StudyComparison, names: tuple[str, str]) -> Iterator[RenderableType]:
    only = (
        f"{plural(told.only_first, 'plan')} only in {names[0]},"
        f" {told.only_second:,} only in {names[1]}"
    )
    if not told.pairs:
        yield Text(f"none; {only}")
        return
    if told.agreement is not None:
        for line in _agreement(told.agreement, names):
            yield Text(line, "bold")
    yield _pairs_table(told.pairs, names)
    if common := common_words([pair.plan for pair in told.pairs]):
        yield Text(f"all of these: {common}")
    yield Text(only)


def _agreement(told: Agreement, names: tuple[str, str]) -> Iterator[str]:
    yield (
        f"{plural(told.plans, 'plan')} measured in both: {names[1]} has {told.ratio:.2f} x the"
        f" speed of {names[0]} (median; {told.slowest:.2f} to {told.fastest:.2f}),"
        f" {told.apart} beyond noise"
    )
    if told.peak_ratio is not None:
        yield f"peaks there are {told.peak_ratio:.2f} x (median)"
    if told.tau is not None and told.chance is not None:
        yield (
            f"they rank alike to {told.tau:+.2f} (Kendall's tau: 1 the same order, -1 the reverse;"
            f" p = {told.chance:.2g})"
        )


def _pairs_table(pairs: Sequence[Pair], names: tuple[str, str]) -> Table:
    made = table(
        ("trials", True),
        ("plan", False),
        (f"{names[0]}\nsamples/s", True),
        (f"{names[1]}\nsamples/s", True),
        ("ratio", True),
        ("peak GiB", True),
    )
    omit = common_knobs([pair.plan for pair in pairs])
    for pair in pairs[:_PAIRS]:
        noise = "" if pair.rates_apart or pair.ratio is None else " ="
        made.add_row(
            f"{pair.first.trial}, {pair.second.trial}",
            Text(plan_words(pair.plan, omit=omit) + lossy_label(_lossy(pair))),
            *(Text(_ended(side)) for side in (pair.first, pair.second)),
            "-" if pair.ratio is None else f"{pair.ratio.value:.2f}{noise}",
            Text(", ".join(map(_peak, (pair.first, pair.second)))),
        )
    if len(pairs) > _PAIRS:
        made.add_row("", f"... and {len(pairs) - _PAIRS} more")
    return made


def _lossy(pair: Pair) -> str:
    """What of the plan is lossy, in a word for each study where they train in another precision."""
    return " or ".join(dict.fromkeys(filter(None, (pair.first.lossy, pair.second.lossy))))


def _ended(side: Measurement) -> str:
    return side.kind if side.samples_per_second is None else spread(side.samples_per_second)


def _peak(side: Measurement) -> str:
    return "-" if side.peak_bytes is None else gib(side.peak_bytes)


def _section(title: str, *content: RenderableType) -> Iterator[RenderableType]:
    yield Text(f"\n{title}", "bold cyan")
    for part in content:
        yield Padding(part, _INDENT, expand=False)
