"""Comparisons as text for a terminal or a log."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rich.console import Group, RenderableType
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
from orchestrator.report.explain_text import ratio_words
from orchestrator.report.format import gib, plural, spread, value_words
from orchestrator.report.labels import (
    KIND_WORDS,
    counts_words,
    lossy_label,
    lossy_suffix,
    lossy_values,
    outcome_words,
    plan_words,
)
from orchestrator.report.plan_tables import table
from orchestrator.report.plan_text import common_knobs, common_words, significant
from orchestrator.report.sweep_tables import ANATOMY_WORDS, section
from search_spaces.trial import Estimate

_MOST_PAIRS = 12


def render_plans(comparison: PlanComparison) -> RenderableType:
    """Renders the comparison of two trials of one study."""
    first, second = comparison.first, comparison.second
    names = (f"trial {first.trial}", f"trial {second.trial}")
    parts: list[RenderableType] = [Rule(Text(f"plimsoll diff {comparison.study}"), align="left")]
    for side in (first, second):
        best = ", the best plan" if side.is_best else ""
        words = plan_words(side.plan) + lossy_suffix(side.plan, side.lossy)
        parts.append(Text(f"trial {side.trial}{best}: {words}: {outcome_words(side.outcome)}"))
    speeds = _speeds(comparison.ratio, comparison.speeds_differ, names)
    parts += [Text(line, "bold") for line in (speeds, _peaks(comparison)) if line]
    if comparison.knobs:
        parts += section("Knobs", _differences(comparison.knobs, names, value_words))
    else:
        parts.append(Text("the plans are identical"))
    if comparison.phases:
        phases = _differences(comparison.phases, names, significant)
        parts += section("Measured seconds per step", phases)
    if comparison.anatomy:
        parts += section("Measured GiB at the peak", _differences(comparison.anatomy, names, gib))
    return Group(*parts)


def _speeds(ratio: Estimate | None, apart: bool | None, names: tuple[str, str]) -> str:
    if ratio is None:
        return "no speed comparison: not both were measured"
    noise = "beyond noise" if apart else "not beyond noise: their intervals overlap"
    return f"{names[1]} has {ratio_words(ratio)} the speed of {names[0]}, {noise}"


def _peaks(comparison: PlanComparison) -> str:
    first, second = comparison.first.peak_bytes, comparison.second.peak_bytes
    if first is None or second is None:
        return ""
    more = second - first
    noise = "beyond noise" if comparison.peaks_differ else "not beyond noise"
    word = "more" if more >= 0 else "less"
    return (
        f"trial {comparison.second.trial} needs {gib(abs(more))} GiB {word} at its peak,"
        f" {gib(second)} against {gib(first)} GiB, {noise}"
    )


def _differences(
    differences: Sequence[Difference], names: tuple[str, str], words: Callable[[Any], str]
) -> Table:
    grid = table(("", False), (names[0], False), (names[1], False))
    for one in differences:
        sides = ("-" if side is None else words(side) for side in (one.first, one.second))
        name = ANATOMY_WORDS.get(one.name, one.name)
        grid.add_row(Text(name + " (derived)" * one.follows), *map(Text, sides))
    return grid


def render_studies(comparison: StudyComparison) -> RenderableType:
    """Renders the comparison of two studies."""
    names = _names(comparison)
    parts: list[RenderableType] = [Rule(Text(f"plimsoll diff {names[0]} {names[1]}"), align="left")]
    for name, side in zip(names, (comparison.first, comparison.second), strict=True):
        parts += [Text(line) for line in _side(name, side)]
    if not comparison.same_job:
        words = "the jobs differ (model, data or train), so their speeds are not comparable"
        parts.append(Text(words, "yellow"))
    if comparison.ratio is not None:
        best = (f"the best plan of {names[0]}", f"the best plan of {names[1]}")
        parts.append(Text(_speeds(comparison.ratio, comparison.speeds_differ, best), "bold"))
    parts += _sections(comparison, names)
    return Group(*parts)


def _sections(comparison: StudyComparison, names: tuple[str, str]) -> Iterator[RenderableType]:
    sections = [
        ("Specification", comparison.specification, "no key differs"),
        ("Environment", comparison.environment, "the same device and software"),
    ]
    if None not in (comparison.first.best, comparison.second.best):
        same = "none: both studies have the same best plan"
        sections.insert(0, ("Best plans: knobs that differ", comparison.best_plans, same))
    for title, differences, same in sections:
        content = _differences(differences, names, _any) if differences else Text(same)
        yield from section(title, content)
    yield from section("Plans tried in both", *_common(comparison, names))


def _names(comparison: StudyComparison) -> tuple[str, str]:
    first, second = comparison.first.study, comparison.second.study
    return (f"{first} (A)", f"{second} (B)") if first == second else (first, second)


def _side(name: str, side: Side) -> Iterator[str]:
    where = f" on {side.device}" if side.device else ""
    yield f"{name}: {plural(side.trials, 'trial')}{where}: {counts_words(dict(side.outcomes))}"
    if side.note:
        yield f"  note: {side.note}"
    best = side.best
    if best is None:
        yield "  no plan is feasible"
        return
    peak = "" if best.peak_bytes is None else f", peak {gib(best.peak_bytes)} GiB"
    words = plan_words(best.plan) + lossy_suffix(best.plan, best.lossy)
    yield f"  best: trial {best.trial}, {words}: {_speed(best)} samples/s{peak}"


def _speed(side: Measurement) -> str:
    return "-" if side.samples_per_second is None else spread(side.samples_per_second)


def _any(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list | tuple):
        return ", ".join(map(value_words, value)) or "empty"
    return value_words(value)


def _common(comparison: StudyComparison, names: tuple[str, str]) -> Iterator[RenderableType]:
    only = (
        f"{plural(comparison.only_first, 'plan')} only in {names[0]},"
        f" {comparison.only_second:,} only in {names[1]}"
    )
    if not comparison.pairs:
        yield Text(f"none; {only}")
        return
    if comparison.agreement is not None:
        for line in _agreement(comparison.agreement, names):
            yield Text(line, "bold")
    yield _pairs_table(comparison.pairs, names)
    if common := common_words([pair.plan for pair in comparison.pairs]):
        yield Text(f"all plans: {common}")
    yield Text(only)


def _agreement(agreement: Agreement, names: tuple[str, str]) -> Iterator[str]:
    yield (
        f"{plural(agreement.plans, 'plan')} measured in both: {names[1]} has"
        f" {agreement.ratio:.2f} x the speed of {names[0]} (median; {agreement.slowest:.2f} to"
        f" {agreement.fastest:.2f}), {agreement.differing} beyond noise"
    )
    if agreement.peak_ratio is not None:
        yield f"peaks in {names[1]} are {agreement.peak_ratio:.2f} x as large (median)"
    if agreement.tau is not None and agreement.p_value is not None:
        yield (
            f"rank correlation {agreement.tau:+.2f} (Kendall's tau: 1 is the same order, -1 the"
            f" reverse; p = {agreement.p_value:.2g})"
        )


def _pairs_table(pairs: Sequence[Pair], names: tuple[str, str]) -> Table:
    grid = table(
        ("trials", True),
        ("plan", False),
        (f"{names[0]}\nsamples/s", True),
        (f"{names[1]}\nsamples/s", True),
        ("ratio", True),
        ("peak GiB", True),
    )
    omit = common_knobs([pair.plan for pair in pairs])
    for pair in pairs[:_MOST_PAIRS]:
        noise = "" if pair.speeds_differ or pair.ratio is None else " ="
        grid.add_row(
            f"{pair.first.trial}, {pair.second.trial}",
            Text(plan_words(pair.plan, omit=omit) + lossy_label(_lossy(pair))),
            *(Text(_outcome(side)) for side in (pair.first, pair.second)),
            "-" if pair.ratio is None else f"{pair.ratio.value:.2f}{noise}",
            Text(", ".join(map(_peak, (pair.first, pair.second)))),
        )
    if len(pairs) > _MOST_PAIRS:
        grid.add_row("", f"... and {len(pairs) - _MOST_PAIRS} more")
    return grid


def _lossy(pair: Pair) -> str:
    # they differ if the studies train in different precisions
    return " or ".join(
        dict.fromkeys(
            filter(
                None, (lossy_values(pair.plan, side.lossy) for side in (pair.first, pair.second))
            )
        )
    )


def _outcome(side: Measurement) -> str:
    return (
        KIND_WORDS[side.outcome.kind]
        if side.samples_per_second is None
        else spread(side.samples_per_second)
    )


def _peak(side: Measurement) -> str:
    return "-" if side.peak_bytes is None else gib(side.peak_bytes)
