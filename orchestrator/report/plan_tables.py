"""The tables of an answer; they fit 110 columns, and a log without colours."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from orchestrator.forecast.breakdown import Breakdown, Quantity, Term
from orchestrator.forecast.memory_budgets import MemoryBudget
from orchestrator.forecast.planner import PlanningReport
from orchestrator.forecast.table import Expected
from orchestrator.report.format import gib
from orchestrator.report.plan_text import (
    answer_sentence,
    brief_term,
    category_words,
    common_knobs,
    common_words,
    enough_sentence,
    expected_words,
    fewest_sentence,
    interval,
    missing_sentence,
    percent,
    ruled_out_sentences,
    significant,
    slowdown_words,
    term_words,
    turned_words,
    waste_sentence,
)
from search_spaces.trial import Estimate

LETTERS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "weights": ("W", "black on cyan"),
        "gradients": ("G", "black on blue"),
        "optimizer": ("O", "black on magenta"),
        "gathered": ("w", "black on bright_cyan"),
        "activations": ("A", "black on green"),
        "temporaries": ("T", "black on yellow"),
        "buffers": ("B", "black on bright_blue"),
        "outside": ("C", "black on white"),
        "fragmentation": ("F", "black on bright_black"),
    }
)
"""A letter for each category, so that a bar can be read without colours."""
_OTHER = ("?", "black on white")
_BAR = 12


def category_bar(held: Sequence[tuple[str, float]], limit: float, line: float, length: int) -> Text:
    """A bar of `length` characters that stands for the limit, a letter for each part of the peak.

    Args:
        held: Bytes by category.
        limit: Bytes that the whole bar stands for; a larger peak fills it.
        line: Bytes at which the load line is drawn.
        length: Characters.
    """
    bar, ends, total = Text(), [], 0.0
    for name, size in held:
        total += size
        ends.append((name, total / limit * length))
    mark = min(round(line / limit * length), length - 1)
    for cell in range(length):
        part = next((name for name, end in ends if end >= cell + 0.5), None)
        if part is None:
            bar.append("┃" if cell == mark else "·", "bold red" if cell == mark else "bright_black")
        else:
            letter, style = LETTERS.get(part, _OTHER)
            bar.append(letter, style if cell < mark else "black on red")
    return bar


def legend() -> Text:
    """What the letters stand for."""
    from orchestrator.report.plan_text import category_words

    told = Text()
    for name, (letter, style) in LETTERS.items():
        told.append(letter, style).append(f" {category_words(name)}  ")
    return told


def table(*headers: tuple[str, bool]) -> Table:
    """A table without side borders; each header says whether its column holds numbers."""
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)
    for header, numeric in headers:
        made.add_column(header, justify="right" if numeric else "left", no_wrap=numeric)
    return made


def best_table(planned: PlanningReport, shown: Sequence[Expected], *, numbered: bool) -> Table:
    """Plans with their forecasts, in the order given."""
    made = table(
        *((("#", True),) if numbered else ()),
        ("plan", False),
        ("samples/s (95 %)", True),
        ("tok/s/dev", True),
        ("MFU", True),
        ("peak memory", True),
        ("GiB", True),
        ("fits", True),
        ("limited by", False),
    )
    omit = common_knobs([told.plan for told in shown])
    for number, told in enumerate(shown, 1):
        more = f" (and {told.alike - 1:,} alike)" if told.alike > 1 else ""
        made.add_row(
            *([str(number)] if numbered else []),
            Text(expected_words(told, omit=omit) + more),
            _speed(told.samples_per_second),
            f"{told.tokens_per_second_per_device:,.0f}",
            _tight(told.mfu),
            category_bar(told.held_bytes, planned.limit_bytes, planned.line_bytes, _BAR),
            gib(told.peak_bytes.value),
            _tight(told.fits),
            Text(brief_term(told.limited_by)),
            style="bold" if told == planned.best else "",
        )
    return made


def _speed(rate: Estimate) -> str:
    return f"{significant(rate.value)} ({interval(rate).replace(' to ', '-')})"


def _tight(share: float) -> str:
    return percent(share).replace(" ", "")


def sizes_table(planned: PlanningReport) -> Table:
    """Counts of devices beside each other."""
    priced = planned.price_per_hour is not None
    made = table(
        ("devices", True),
        ("samples/s (95 %)", True),
        ("tok/s/dev", True),
        ("scaling", True),
        ("MFU", True),
        ("GiB", True),
        *((("per 1e9 tokens", True),) if priced else ()),
        ("best plan", False),
    )
    able = [size for size in planned.sizes if size.best]
    for size in planned.sizes:
        if not size.best:
            told = size.refusal or "nothing fits"
            blank = ["-"] * (6 if priced else 5)
            made.add_row(f"{size.ranks:,}", *blank, Text(told))
            continue
        best, least = size.best[0], able[0].best[0]
        share = best.tokens_per_second_per_device / least.tokens_per_second_per_device
        price = size.price_per_billion_tokens
        mark = " *" if size.ranks in planned.price_front else ""
        made.add_row(
            f"{size.ranks:,}",
            _speed(best.samples_per_second),
            f"{best.tokens_per_second_per_device:,.0f}",
            _tight(share),
            _tight(best.mfu),
            gib(best.peak_bytes.value),
            *([] if price is None else [f"{price:,.2f}{mark}"]),
            Text(expected_words(best)),
        )
    return made


def memory_table(sizes: Sequence[MemoryBudget]) -> Table:
    """What has to be turned on at each device size, and what that saves and costs."""
    made = table(
        ("limit GiB", True),
        ("samples/s", True),
        ("peak GiB", True),
        ("saves GiB", True),
        ("costs", True),
        ("turned, as against the fastest plan of all", False),
    )
    for size in sizes:
        limit = gib(size.limit_bytes)
        if size.best is None:
            made.add_row(limit, "-", "-", "-", "-", "nothing fits")
            continue
        made.add_row(
            limit,
            significant(size.best.samples_per_second.value),
            gib(size.best.peak_bytes.value),
            gib(size.saved_bytes),
            slowdown_words(size.slowdown),
            _turned(size),
        )
    return made


def _turned(size: MemoryBudget) -> Text:
    assert size.best is not None
    words = expected_words(size.best)
    return Text(f"{turned_words(size)}\n= {words}" if size.turned else f"nothing: {words}")


def terms_table(terms: Sequence[Term], *, seconds: bool) -> Table:
    """A plan's seconds or bytes, term by term, with what each consists of."""
    made = table(
        ("takes" if seconds else "holds", False),
        ("ms" if seconds else "GiB", True),
        ("share", True),
        ("corrected", True),
        ("made of", False),
    )
    total = sum(term.amount for term in terms)
    for term in sorted(terms, key=lambda term: -term.amount):
        if not term.amount:
            continue
        made.add_row(
            term_words(term.name) if seconds else category_words(term.name),
            significant(1e3 * term.amount) if seconds else gib(term.amount),
            percent(term.amount / total),
            "-" if abs(term.scale - 1) < 0.005 else f"x {term.scale:.2f}",
            Text("; ".join(quantity_words(quantity) for quantity in term.of)),
        )
    made.add_section()
    made.add_row("in all", significant(1e3 * total) if seconds else gib(total))
    return made


def quantity_words(quantity: Quantity) -> str:
    """One figure: `3.2 PFLOP of work`."""
    value, unit = quantity.value, quantity.unit
    if unit == "share":
        return f"{quantity.name} {percent(value)}"
    if unit == "B":
        return f"{quantity.name} {gib(value)} GiB"
    if unit == "s":
        return f"{quantity.name} {significant(1e3 * value)} ms"
    scaled, prefix = value, ""
    for factor, name in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M")):
        if abs(value) >= factor:
            scaled, prefix = value / factor, name
            break
    told = f"{scaled:,.0f}" if scaled >= 1000 else f"{scaled:.4g}"
    apart = " " if prefix and unit[:1].islower() else ""
    return f"{quantity.name} {told} {prefix}{apart}{unit}".rstrip()


_INDENT = (0, 0, 0, 2)


def render_planned(planned: PlanningReport) -> RenderableType:
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


def _plans(planned: PlanningReport) -> Iterator[RenderableType]:
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


def _sizes(planned: PlanningReport) -> Iterator[str]:
    if fewest := fewest_sentence(planned):
        yield fewest
    if planned.price_front:
        yield f"* nothing is faster for less, at {planned.price_per_hour:g} a device and hour"


def _took(planned: PlanningReport) -> str:
    return (
        f"{planned.forecast_plans:,} plans forecast, {planned.seconds:.1f} s;"
        f" coefficients: {planned.provenance}"
    )


def render_explained(explained: Breakdown) -> RenderableType:
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
