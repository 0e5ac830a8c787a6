"""Explanations for a terminal or a log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from orchestrator.explaining.changes import Worth
from orchestrator.explaining.fate import Fate
from orchestrator.explaining.remedies import Shortage
from orchestrator.explaining.untried import Untried
from orchestrator.explaining.won import Rival, Won
from orchestrator.explaining.words import (
    change_words,
    fate_sentences,
    ratio_words,
    remedies_sentence,
    remedy_words,
    rival_sentence,
    room_sentence,
    shortage_sentences,
    time_sentences,
    value_words,
    worth_words,
)
from orchestrator.planning.tables import table
from orchestrator.planning.words import category_words, interval, percent, significant
from orchestrator.view.plan_words import lossy_label, plan_words
from orchestrator.view.words import gib

_INDENT = (0, 0, 0, 2)


def render_won(won: Won) -> RenderableType:
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


def _against(rival: Rival) -> Iterator[RenderableType]:
    name = "not tried" if rival.trial is None else f"trial {rival.trial}"
    told: list[RenderableType] = [Text(rival_sentence(rival), "bold")]
    if rival.worths:
        told.append(_worths_table(rival.worths))
        told.append(
            Text("worth: the winner over the plan that differs in this knob alone; knobs interact")
        )
    told += map(Text, time_sentences(rival))
    words = plan_words(rival.plan) + lossy_label(rival.lossy)
    yield from _section(f"Against the plan one would start with: {words} ({name})", *told)


def _worths_table(worths: Sequence[Worth]) -> Table:
    made = table(
        ("knob", False),
        ("winner", False),
        ("there", False),
        ("worth in speed", True),
        ("peak GiB", True),
        ("known by", False),
    )
    for worth in worths:
        change = worth.change
        made.add_row(
            change.knob,
            Text(value_words(change.ours)),
            Text(value_words(change.theirs)),
            *map(Text, worth_words(worth)),
        )
    return made


def _rivals_table(rivals: Sequence[Rival]) -> Table:
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


def render_fate(fate: Fate) -> RenderableType:
    """What happened to a trial."""
    words = plan_words(fate.plan) + lossy_label(fate.lossy)
    title = f"trial {fate.trial}, {words}: {fate.outcome}"
    parts = [*_head(fate.study, title, fate.note), *map(Text, fate_sentences(fate))]
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
    told = [Text(remedies_sentence(short))]
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
        made.add_row(*map(Text, remedy_words(remedy)))
    return made


def render_untried(untried: Untried) -> RenderableType:
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
