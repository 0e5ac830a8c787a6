"""The planning report for terminals: its tables fit 110 columns and a log without colours."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType

from rich import box
from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from orchestrator.forecast.breakdown import Breakdown, Quantity, Term
from orchestrator.forecast.planner import PlanningReport
from orchestrator.forecast.table import ForecastRow
from orchestrator.report.format import gib, si_scaled
from orchestrator.report.plan_text import (
    QUANTITY_WORDS,
    answer_sentence,
    brief_term,
    category_words,
    common_knobs,
    common_words,
    expected_words,
    interval,
    percent,
    planning_note_words,
    ruled_out_sentences,
    significant,
    term_words,
    variance_words,
)
from orchestrator.report.sweep_tables import section
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
"""Letter and style of each category: the letters keep a bar readable without colours."""
_OTHER = ("?", "black on white")
_BAR = 12  # characters


def category_bar(held: Sequence[tuple[str, float]], limit: float, line: float, length: int) -> Text:
    """Draws the peak by category on a bar that represents the limit, with letters for categories.

    Args:
        held: Bytes by category.
        limit: Bytes that the whole bar represents; a larger peak fills it.
        line: Bytes where the headroom begins, which a mark shows.
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
    """Explains the letters of the bars."""
    text = Text()
    for name, (letter, style) in LETTERS.items():
        text.append(letter, style).append(f" {category_words(name)}  ")
    return text


def table(*headers: tuple[str, bool]) -> Table:
    """Makes a table without side borders; each header has a flag that marks a column of numbers."""
    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)
    for header, numeric in headers:
        grid.add_column(header, justify="right" if numeric else "left", no_wrap=numeric)
    return grid


def best_table(report: PlanningReport, rows: Sequence[ForecastRow], *, numbered: bool) -> Table:
    """Lists plans with their forecasts, in the order of `rows`."""
    grid = table(
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
    omit = common_knobs([row.plan for row in rows])
    for number, row in enumerate(rows, 1):
        forecast, equivalent = row.forecast, row.equivalent_plans - 1
        more = f" (and {equivalent:,} equivalent)" if equivalent else ""
        grid.add_row(
            *([str(number)] if numbered else []),
            Text(expected_words(row, omit=omit) + more),
            _speed(forecast.samples_per_second),
            f"{row.tokens_per_second_per_device:,.0f}",
            _tight(row.mfu),
            category_bar(row.held_bytes, report.limit_bytes, report.line_bytes, _BAR),
            gib(forecast.peak_bytes.value),
            _tight(forecast.fits),
            Text(brief_term(forecast.limited_by)),
            style="bold" if row == report.best else "",
        )
    return grid


def _speed(rate: Estimate) -> str:
    return f"{significant(rate.value)} ({interval(rate).replace(' to ', '-')})"


def _tight(share: float) -> str:
    return percent(share).replace(" ", "")


def sizes_table(report: PlanningReport) -> Table:
    """Compares device counts."""
    priced = report.price_per_hour is not None
    grid = table(
        ("devices", True),
        ("samples/s (95 %)", True),
        ("tok/s/dev", True),
        ("scaling", True),
        ("MFU", True),
        ("GiB", True),
        *((("per 1e9 tokens", True),) if priced else ()),
        ("best plan", False),
    )
    smallest = next((size.best[0] for size in report.device_counts if size.best), None)
    for size in report.device_counts:
        if not size.best or smallest is None:
            blank = ["-"] * (6 if priced else 5)
            grid.add_row(
                f"{size.ranks:,}", *blank, Text("; ".join(size.refusals) or "no plan fits")
            )
            continue
        best = size.best[0]
        share = best.tokens_per_second_per_device / smallest.tokens_per_second_per_device
        price = size.price_per_billion_tokens
        grid.add_row(
            f"{size.ranks:,}",
            _speed(best.forecast.samples_per_second),
            f"{best.tokens_per_second_per_device:,.0f}",
            _tight(share),
            _tight(best.mfu),
            gib(best.forecast.peak_bytes.value),
            *([] if price is None else [f"{price:,.2f}"]),
            Text(expected_words(best)),
        )
    return grid


def terms_table(terms: Sequence[Term], *, seconds: bool) -> Table:
    """Lists the terms of a step's time or the categories of its memory, with their breakdown."""
    grid = table(
        ("term" if seconds else "category", False),
        ("ms" if seconds else "GiB", True),
        ("share", True),
        ("correction", True),
        ("breakdown", False),
    )
    total = sum(term.amount for term in terms)
    for term in sorted(terms, key=lambda term: -term.amount):
        if not term.amount:
            continue
        grid.add_row(
            term_words(term.name) if seconds else category_words(term.name),
            significant(1e3 * term.amount) if seconds else gib(term.amount),
            percent(term.amount / total),
            "-" if abs(term.scale - 1) < 0.005 else f"x {term.scale:.2f}",
            Text("; ".join(quantity_words(quantity) for quantity in term.of)),
        )
    grid.add_section()
    grid.add_row("total", significant(1e3 * total) if seconds else gib(total))
    return grid


def quantity_words(quantity: Quantity) -> str:
    """Formats a quantity with its name and unit: `work per device 3.2 PFLOP`."""
    name = QUANTITY_WORDS[quantity.name].format(precision=quantity.precision)
    value, unit = quantity.value, quantity.unit
    if unit == "share":
        return f"{name} {percent(value)}"
    if unit == "B":
        return f"{name} {gib(value)} GiB"
    if unit == "s":
        return f"{name} {significant(1e3 * value)} ms"
    scaled, prefix = si_scaled(value, smallest=1e6)
    figure = f"{scaled:,.0f}" if scaled >= 1000 else f"{scaled:.4g}"
    gap = " " if prefix and unit[:1].islower() else ""
    return f"{name} {figure} {prefix}{gap}{unit}".rstrip()


def render_plan_report(report: PlanningReport) -> RenderableType:
    """Renders a planning report: the best plan first."""
    parts: list[RenderableType] = [Text(answer_sentence(report), "bold")]
    parts += [Text(f"note: {planning_note_words(note)}", "yellow") for note in report.notes]
    if report.best is not None:
        parts += _plans(report)
    if len(report.device_counts) > 1:
        parts += section("Device counts", sizes_table(report))
    parts += section(
        "Coverage of the space", *map(Text, ruled_out_sentences(report.recommendation))
    )
    return Group(*parts, Text(f"\n{_footer(report)}", "bright_black"))


def _plans(report: PlanningReport) -> Iterator[RenderableType]:
    best = report.recommendation.best
    parts: list[RenderableType] = [best_table(report, best, numbered=True), legend()]
    if len(best) > 1 and (common := common_words([row.plan for row in best])):
        parts.append(Text(f"all plans: {common}"))
    usable, limit = gib(report.line_bytes), gib(report.limit_bytes)
    parts += [
        Text(f"usable memory: {usable} of {limit} GiB per device"),
        Text("fits: probability that the peak stays below the limit"),
    ]
    yield from section("Best plans", *parts)
    title = "Pareto front: no other plan is faster with less memory"
    yield from section(title, best_table(report, report.front, numbered=False))


def _footer(report: PlanningReport) -> str:
    return (
        f"{report.forecast_plans:,} plans forecast in {report.seconds:.1f} s;"
        f" calibration: {report.provenance}"
    )


def render_breakdown(breakdown: Breakdown) -> RenderableType:
    """Renders the forecast of one plan term by term."""
    row, forecast = breakdown.expected, breakdown.expected.forecast
    stage = f" on the {row.stage} pipeline stage" if row.stage else ""
    parts: list[RenderableType] = [
        Rule(Text(expected_words(row)), align="left"),
        Text(
            f"{significant(forecast.samples_per_second.value)} samples/s"
            f" ({interval(forecast.samples_per_second)}), MFU {percent(row.mfu)};"
            f" peak {gib(forecast.peak_bytes.value)} GiB ({gib(forecast.peak_bytes.low)} to"
            f" {gib(forecast.peak_bytes.high)}){stage}; {percent(forecast.fits)} likely to fit",
            "bold",
        ),
    ]
    parts += section("Time per step", terms_table(breakdown.time, seconds=True))
    if row.recomputed:
        parts.append(Text(f"  recomputation is {percent(row.recomputed)} of the compute"))
    parts += section("Memory at the peak", terms_table(breakdown.memory, seconds=False))
    uncertainty = [
        Text(f"speed: {_largest(breakdown.time_variance, term_words)}"),
        Text(f"memory: {_largest(breakdown.memory_variance, category_words)}"),
        Text(f"calibration: {breakdown.provenance}; --records of a study narrows the intervals"),
    ]
    parts += section("Sources of uncertainty", *uncertainty)
    return Group(*parts)


def _largest(shares: tuple[tuple[str, float], ...], words: Callable[[str], str]) -> str:
    return ", ".join(
        f"{variance_words(name, words)} {percent(share)}" for name, share in shares[:5]
    )
