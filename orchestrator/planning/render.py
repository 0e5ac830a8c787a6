"""An answer for a terminal or a log."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.text import Text

from orchestrator.planning.bars import legend
from orchestrator.planning.explained import Explained
from orchestrator.planning.planned import Planned
from orchestrator.planning.tables import best_table, memory_table, sizes_table, terms_table
from orchestrator.planning.words import (
    answer_sentence,
    category_words,
    common_words,
    enough_sentence,
    expected_words,
    fewest_sentence,
    interval,
    missing_sentence,
    percent,
    ruled_out_sentences,
    significant,
    term_words,
    waste_sentence,
)
from orchestrator.view.words import gib

_INDENT = (0, 0, 0, 2)


def render_planned(planned: Planned) -> RenderableType:
    """The answer first, then what it rests on."""
    parts: list[RenderableType] = [Text(answer_sentence(planned), "bold")]
    parts += [Text(f"note: {note}", "yellow") for note in planned.notes]
    if planned.answer.nearest is not None:
        parts += [Text(missing_sentence(planned.answer.nearest)), Text(enough_sentence(planned))]
    if planned.best is not None:
        parts += _plans(planned)
    if len(planned.sizes) > 1:
        parts += _section("Counts of devices", sizes_table(planned), *map(Text, _sizes(planned)))
    if planned.memory_sizes:
        parts += _section("Device sizes", memory_table(planned.memory_sizes))
    if planned.wasteful:
        lines = [Text(waste_sentence(waste)) for waste in planned.wasteful]
        parts += _section("Sizes that waste the matrix units", *lines)
    parts += _section("Ruled out", *map(Text, ruled_out_sentences(planned.answer)))
    return Group(*parts, Text(f"\n{_took(planned)}", "bright_black"))


def _plans(planned: Planned) -> Iterator[RenderableType]:
    best = planned.answer.best
    told: list[RenderableType] = [best_table(planned, best, numbered=True), legend()]
    if len(best) > 1 and (common := common_words([expected.plan for expected in best])):
        told.append(Text(f"all of these: {common}"))
    told.append(
        Text(
            f"the line: {gib(planned.line_bytes)} of {gib(planned.limit_bytes)} GiB a device;"
            " fits: probability that the peak stays below the limit"
        )
    )
    yield from _section("Best plans", *told)
    title = "Speed against memory: no other plan is faster with less"
    yield from _section(title, best_table(planned, planned.front, numbered=False))


def _sizes(planned: Planned) -> Iterator[str]:
    if fewest := fewest_sentence(planned):
        yield fewest
    if planned.price_front:
        yield f"* nothing is faster for less, at {planned.price_per_hour:g} a device and hour"


def _took(planned: Planned) -> str:
    return (
        f"{planned.forecast_plans:,} plans forecast, {planned.seconds:.1f} s;"
        f" coefficients: {planned.provenance}"
    )


def render_explained(explained: Explained) -> RenderableType:
    """One plan's arithmetic, term by term."""
    told = explained.expected
    stage = f", on the {told.stage} stage of the pipeline" if told.stage else ""
    parts: list[RenderableType] = [
        Rule(Text(expected_words(told)), align="left"),
        Text(
            f"{significant(told.samples_per_second.value)} samples/s"
            f" ({interval(told.samples_per_second)}), MFU {percent(told.mfu)};"
            f" peak {gib(told.peak_bytes.value)} GiB ({gib(told.peak_bytes.low)} to"
            f" {gib(told.peak_bytes.high)}){stage}; fits with {percent(told.fits)}",
            "bold",
        ),
    ]
    parts += _section("Seconds of a step", terms_table(explained.time, seconds=True))
    if told.recomputed:
        parts.append(Text(f"  recomputation takes {percent(told.recomputed)} of the computing"))
    parts += _section("Bytes at the peak", terms_table(explained.memory, seconds=False))
    doubts = [
        Text(f"speed: {_doubts(explained.time_doubts, term_words)}"),
        Text(f"memory: {_doubts(explained.memory_doubts, category_words)}"),
        Text(f"coefficients: {explained.provenance}; --records of a study narrows them"),
    ]
    parts += _section("What makes the intervals as wide as they are", *doubts)
    return Group(*parts)


def _doubts(doubts: tuple[tuple[str, float], ...], words: Callable[[str], str]) -> str:
    return ", ".join(f"{words(name)} {percent(share)}" for name, share in doubts[:5])


def _section(title: str, *content: RenderableType) -> Iterator[RenderableType]:
    yield Text(f"\n{title}", "bold cyan")
    for part in content:
        yield Padding(part, _INDENT, expand=False)
