"""Tables of planning reports; they fit 110 columns."""

from collections.abc import Collection, Sequence

from orchestrator.forecast.planner import LengthResult, PlanningReport, ScaleResult
from orchestrator.forecast.table import ForecastRow, Term
from orchestrator.report import plan_text
from orchestrator.report.format import gib, mfu_words, significant
from orchestrator.report.sections import Table


def plans_table(rows: Sequence[ForecastRow]) -> Table:
    """Lists plans with their forecasts, in the order of `rows`; leaves out the knobs they share."""
    omit, _ = plan_text.common_knobs([row.plan for row in rows])
    offloads = any(row.forecast.host_bytes for row in rows)
    host = ("#host GiB",) if offloads else ()
    return Table(
        titles=(
            *("##", "plan", "#samples/s (95 %)", "#tokens/s/device"),
            *("#MFU", "#GiB", *host, "#fits", "limited by"),
        ),
        rows=tuple(_plan_cells(number, row, omit, offloads) for number, row in enumerate(rows, 1)),
    )


def _plan_cells(
    number: int, row: ForecastRow, omit: Collection[str], offloads: bool
) -> tuple[str, ...]:
    equivalent = row.equivalent_plans - 1
    more = f" (and {equivalent:,} equivalent)" if equivalent else ""
    return (
        str(number),
        plan_text.expected_words(row, omit=omit) + more,
        _speed(row),
        f"{row.tokens_per_second_per_device:,.0f}",
        mfu_words(row.mfu),
        gib(row.forecast.peak_bytes.value),
        *([gib(row.forecast.host_bytes)] if offloads else []),
        plan_text.percent(row.forecast.fits),
        plan_text.term_words(row.forecast.limited_by),
    )


def _speed(row: ForecastRow) -> str:
    rate = row.forecast.samples_per_second
    return f"{significant(rate.value)} ({plan_text.interval(rate)})"


def counts_table(report: PlanningReport) -> Table | None:
    """Compares device counts; None for a single one."""
    if len(report.device_counts) < 2:
        return None
    smallest = next((size.best[0] for size in report.device_counts if size.best), None)
    price = () if report.price_per_hour is None else ("#per 1e9 tokens",)
    figures = ("#samples/s (95 %)", "#tokens/s/device", "#scaling", "#GiB")
    return Table(
        titles=("#devices", *figures, *price, "best plan"),
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
        plan_text.percent(scaling),
        gib(best.forecast.peak_bytes.value),
        *([] if price is None else [f"{price:,.2f}"]),
        plan_text.expected_words(best),
    )


def lengths_table(lengths: Sequence[LengthResult]) -> Table:
    """Compares sequence lengths, those that do not fit included."""
    figures = ("#samples/s (95 %)", "#tokens/s/device", "#GiB", "#fits")
    return Table(titles=("#tokens", *figures, "best plan"), rows=tuple(map(_length_cells, lengths)))


def _length_cells(result: LengthResult) -> tuple[str, ...]:
    if (best := result.best) is None:
        return (f"{result.tokens:,}", *("-",) * 4, result.refusal or "no plan fits")
    return (
        f"{result.tokens:,}",
        _speed(best),
        f"{best.tokens_per_second_per_device:,.0f}",
        gib(best.forecast.peak_bytes.value),
        plan_text.percent(best.forecast.fits),
        plan_text.expected_words(best),
    )


def terms_table(terms: Sequence[Term], *, seconds: bool) -> Table:
    """Lists the terms of a step's time or the categories of its memory."""
    total = sum(term.amount for term in terms)
    words = plan_text.term_words if seconds else plan_text.category_words

    def amount(value: float) -> str:
        return significant(1e3 * value) if seconds else gib(value)

    rows = [
        (
            words(term.name),
            amount(term.amount),
            plan_text.percent(term.amount / total),
            "-" if abs(term.scale - 1) < 0.005 else f"x {term.scale:.2f}",
        )
        for term in sorted(terms, key=lambda term: -term.amount)
        if term.amount
    ]
    name, unit = ("term", "#ms") if seconds else ("category", "#GiB")
    titles = (name, unit, "#share", "#correction")
    rows.append(("total", amount(total), "", ""))
    return Table(titles=titles, rows=tuple(rows), bold={len(rows) - 1})
