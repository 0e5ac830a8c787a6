"""The planning report for terminals: its tables fit 110 columns and a log without colours."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.table import Table as RichTable
from rich.text import Text

from orchestrator.forecast.breakdown import Breakdown, Quantity, Term
from orchestrator.forecast.planner import PlanningReport, ScaleResult
from orchestrator.forecast.table import ForecastRow
from orchestrator.report.format import gib, mfu_sentence, mfu_words, si_scaled
from orchestrator.report.html import ColumnKind, Table
from orchestrator.report.plan_text import (
    QUANTITY_WORDS,
    answer_sentence,
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
)
from orchestrator.report.sweep_tables import plain_table, section
from orchestrator.report.understood import understood_block


def plans_table(rows: Sequence[ForecastRow]) -> Table:
    """Lists plans with their forecasts, in the order of `rows`; leaves out the knobs they share."""
    omit = common_knobs([row.plan for row in rows])
    offloads = any(row.forecast.host_bytes for row in rows)
    host: dict[str, ColumnKind] = {"host GiB": "number"} if offloads else {}
    return Table(
        columns={
            "#": "number",
            "plan": "plan",
            "samples/s (95 %)": "number",
            "tokens/s/device": "number",
            "MFU": "number",
            "GiB": "number",
            **host,
            "fits": "number",
            "limited by": "words",
        },
        rows=tuple(_plan_cells(number, row, omit, offloads) for number, row in enumerate(rows, 1)),
    )


def _plan_cells(
    number: int, row: ForecastRow, omit: Collection[str], offloads: bool
) -> tuple[str, ...]:
    equivalent = row.equivalent_plans - 1
    more = f" (and {equivalent:,} equivalent)" if equivalent else ""
    return (
        str(number),
        expected_words(row, omit=omit) + more,
        _speed(row),
        f"{row.tokens_per_second_per_device:,.0f}",
        mfu_words(row.mfu),
        gib(row.forecast.peak_bytes.value),
        *([gib(row.forecast.host_bytes)] if offloads else []),
        percent(row.forecast.fits),
        term_words(row.forecast.limited_by),
    )


def _speed(row: ForecastRow) -> str:
    rate = row.forecast.samples_per_second
    return f"{significant(rate.value)} ({interval(rate)})"


def counts_table(report: PlanningReport) -> Table | None:
    """Compares device counts; None for a single one."""
    if len(report.device_counts) < 2:
        return None
    smallest = next((size.best[0] for size in report.device_counts if size.best), None)
    price: dict[str, ColumnKind] = {}
    if report.price_per_hour is not None:
        price = {"per 1e9 tokens": "number"}
    return Table(
        columns={
            "devices": "number",
            "samples/s (95 %)": "number",
            "tokens/s/device": "number",
            "scaling": "number",
            "GiB": "number",
            **price,
            "best plan": "plan",
        },
        rows=tuple(_count_cells(size, smallest, len(price)) for size in report.device_counts),
    )


def _count_cells(size: ScaleResult, smallest: ForecastRow | None, prices: int) -> tuple[str, ...]:
    if not size.best or smallest is None:
        refusals = "; ".join(size.refusals) or "no plan fits"
        return (f"{size.ranks:,}", *("-",) * (4 + prices), refusals)
    best, price = size.best[0], size.price_per_billion_tokens
    scaling = best.tokens_per_second_per_device / smallest.tokens_per_second_per_device
    return (
        f"{size.ranks:,}",
        _speed(best),
        f"{best.tokens_per_second_per_device:,.0f}",
        percent(scaling),
        gib(best.forecast.peak_bytes.value),
        *([] if price is None else [f"{price:,.2f}"]),
        expected_words(best),
    )


def rendered(table: Table) -> RichTable:
    """Renders a table for the terminal."""
    grid = plain_table(*((name, kind == "number") for name, kind in table.columns.items()))
    for row in table.rows:
        grid.add_row(*map(Text, row))
    return grid


def terms_table(terms: Sequence[Term], *, seconds: bool) -> RichTable:
    """Lists the terms of a step's time or the categories of its memory, with their breakdown."""
    grid = plain_table(
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
    """Renders a planning report: what was understood, then the best plan."""
    parts: list[RenderableType] = [understood_block(report.understood), Text()]
    parts += [Text(answer_sentence(report), "bold")]
    parts += [Text(f"note: {planning_note_words(note)}", "yellow") for note in report.notes]
    if report.best is not None:
        parts += _plans(report)
    if counts := counts_table(report):
        parts += section("Device counts", rendered(counts))
    parts += section(
        "Coverage of the space", *map(Text, ruled_out_sentences(report.recommendation))
    )
    return Group(*parts, Text(f"\n{_footer(report)}", "bright_black"))


def _plans(report: PlanningReport) -> Iterator[RenderableType]:
    best = report.recommendation.best
    parts: list[RenderableType] = [rendered(plans_table(best))]
    if len(best) > 1 and (common := common_words([row.plan for row in best])):
        parts.append(Text(f"all plans: {common}"))
    usable, limit = gib(report.line_bytes), gib(report.limit_bytes)
    parts += [
        Text(f"usable memory: {usable} of {limit} GiB per device"),
        Text("fits: probability that the peak stays below the limit"),
    ]
    if any(row.forecast.host_bytes for row in (*best, *report.front)):
        parts.append(Text("host GiB: host memory that all ranks of a node offload to"))
    if mfu := mfu_sentence(best[0].mfu, best[0].ceiling, best[0].paper_mfu):
        parts.append(Text(mfu))
    yield from section("Best plans", *parts)
    title = "Pareto front: no other plan is faster with less memory"
    yield from section(title, rendered(plans_table(report.front)))


def _footer(report: PlanningReport) -> str:
    return (
        f"{report.forecast_plans:,} plans forecast in {report.seconds:.1f} s;"
        f" calibration: {report.provenance}"
    )


def render_breakdown(breakdown: Breakdown) -> RenderableType:
    """Renders the forecast of one plan term by term."""
    row, forecast = breakdown.expected, breakdown.expected.forecast
    stage = f" on the {row.stage} pipeline stage" if row.stage else ""
    host = f"; {gib(forecast.host_bytes)} GiB of host memory per node"
    fits = f"{percent(forecast.fits)} likely to fit{host if forecast.host_bytes else ''}"
    parts: list[RenderableType] = [
        Rule(Text(expected_words(row)), align="left"),
        Text(
            f"{significant(forecast.samples_per_second.value)} samples/s"
            f" ({interval(forecast.samples_per_second)}), MFU {mfu_words(row.mfu)};"
            f" peak {gib(forecast.peak_bytes.value)} GiB ({gib(forecast.peak_bytes.low)} to"
            f" {gib(forecast.peak_bytes.high)}){stage}; {fits}",
            "bold",
        ),
    ]
    parts += section("Time per step", terms_table(breakdown.time, seconds=True))
    if row.recomputed:
        parts.append(Text(f"  recomputation is {percent(row.recomputed)} of the compute"))
    parts += section("Memory at the peak", terms_table(breakdown.memory, seconds=False))
    source = f"calibration: {breakdown.provenance}; --records of a study narrows the intervals"
    parts.append(Text(f"\n{source}"))
    return Group(*parts)
